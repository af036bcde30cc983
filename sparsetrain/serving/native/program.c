/* SPDX-License-Identifier: Apache-2.0
 *
 * The compiled program: TVM's runtime loaded, the weights as tensors, calls of its virtual machine.
 *
 * Everything goes through the C ABI of apache-tvm-ffi. The program tells what memory it works in, and
 * is given it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tvm/ffi/c_api.h>

#include "internal.h"

#define APART 16 /* ids: whatever begins at a multiple of so many is aligned */
#define MAX_ROWS ((int64_t)1 << 40) /* of a request: products with it fit 64 bits */
#define HEAD 5 /* numbers of a need before its extents: first, last, within, kind, bits */

typedef struct {
  DLManagedTensor managed;
  TVMFFIObjectHandle handle;
  int64_t shape[8];
} tensor;

typedef struct {
  char *data;
  size_t size;
} block;

struct st_program {
  TVMFFIObjectHandle module, machine, needs, run;
  TVMFFIAny *arguments; /* inputs, params, and what it works in */
  int num_fixed, room;  /* inputs and params; room for what it works in */
  tensor *made, *params, *work; /* made: of the inputs */
  int64_t *starts, *counts;     /* of each feature's ids */
  block inputs, scratch; /* they only grow */
};

/* The message of what TVM raised, without its traceback. */
static int raised(char *error, const char *what) {
  TVMFFIObjectHandle object = NULL;
  TVMFFIErrorMoveFromRaised(&object);
  if (!object) return st_fail(error, ST_SYSTEM, "%s: TVM's runtime failed", what);
  TVMFFIErrorCell *cell = (TVMFFIErrorCell *)((char *)object + sizeof(TVMFFIObject));
  int length = (int)cell->message.size;
  const char *end = memchr(cell->message.data, '\n', (size_t)length);
  if (end) length = (int)(end - cell->message.data);
  st_fail(error, ST_SYSTEM, "%s: %.*s", what, length, cell->message.data);
  TVMFFIObjectDecRef(object);
  return ST_SYSTEM;
}

static TVMFFIAny text_argument(const char *text) {
  return (TVMFFIAny){.type_index = kTVMFFIRawStr, .v_c_str = text};
}

static TVMFFIAny number_argument(int64_t number) {
  return (TVMFFIAny){.type_index = kTVMFFIInt, .v_int64 = number};
}

static TVMFFIAny object_argument(TVMFFIObjectHandle object, int type) {
  return (TVMFFIAny){.type_index = type, .v_obj = object};
}

/* Calls a global function of the runtime; `result` is an object. */
static int call_global(const char *name, TVMFFIAny *arguments, int count, TVMFFIAny *result) {
  TVMFFIByteArray key = {name, strlen(name)};
  TVMFFIObjectHandle function = NULL;
  int code = TVMFFIFunctionGetGlobal(&key, &function);
  if (code || !function) return code ? code : -1;
  *result = (TVMFFIAny){.type_index = kTVMFFINone};
  code = TVMFFIFunctionCall(function, arguments, count, result);
  TVMFFIObjectDecRef(function);
  return code;
}

static TVMFFIObjectHandle function_of(TVMFFIObjectHandle module, const char *name) {
  TVMFFIAny arguments[] = {object_argument(module, kTVMFFIModule), text_argument(name),
                           {.type_index = kTVMFFIBool, .v_int64 = 1}};
  TVMFFIAny result;
  if (call_global("ffi.ModuleGetFunction", arguments, 3, &result)) return NULL;
  return result.type_index == kTVMFFIFunction ? result.v_obj : NULL;
}

/* Calls a function of a module once. */
static int call_member(TVMFFIObjectHandle module, const char *name, TVMFFIAny *arguments, int count,
                       TVMFFIAny *result) {
  TVMFFIObjectHandle function = function_of(module, name);
  if (!function) return -1;
  int code = TVMFFIFunctionCall(function, arguments, count, result);
  TVMFFIObjectDecRef(function);
  return code;
}

/* The runtime that this process has loaded already, or that of the folder. */
static int load_runtime(const st_model *model, char *error) {
  static const char name[] = "libtvm_runtime.so";
  char path[4400];
  TVMFFIVersion version;
  TVMFFIGetVersion(&version);
  if (version.major != TVM_FFI_VERSION_MAJOR || version.minor != TVM_FFI_VERSION_MINOR)
    return st_fail(error, ST_ARTEFACT,
                   "%s: it was exported with apache-tvm-ffi %d.%d, this process has loaded %d.%d",
                   model->path, TVM_FFI_VERSION_MAJOR, TVM_FFI_VERSION_MINOR, (int)version.major,
                   (int)version.minor);
  setenv("TVM_NUM_THREADS", "1", 0);
  setenv("TVM_BIND_THREADS", "0", 0);
  snprintf(path, sizeof path, "%s/%s", model->path, name);
  if (dlopen(name, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) || dlopen(path, RTLD_NOW | RTLD_GLOBAL))
    return ST_OK;
  return st_fail(error, ST_SYSTEM, "%s", dlerror());
}

/* A tensor of memory that somebody else owns. */
static int wrap(tensor *made, const void *data, int kind, int bits, int ndim, const int64_t *shape) {
  memcpy(made->shape, shape, (size_t)ndim * sizeof *shape);
  made->managed = (DLManagedTensor){.dl_tensor = {.data = (void *)data,
                                                  .device = {kDLCPU, 0},
                                                  .ndim = ndim,
                                                  .dtype = {(uint8_t)kind, (uint8_t)bits, 1},
                                                  .shape = made->shape}};
  return TVMFFITensorFromDLPack(&made->managed, 0, 0, &made->handle);
}

static int load_machine(st_model *model, struct st_program *program, char *error) {
  char path[4400];
  snprintf(path, sizeof path, "%s/model.so", model->path);
  TVMFFIAny arguments[] = {text_argument(path)}, result = {.type_index = kTVMFFINone};
  if (call_global("ffi.ModuleLoadFromFile", arguments, 1, &result)) return raised(error, path);
  program->module = result.v_obj;
  result = (TVMFFIAny){.type_index = kTVMFFINone};
  if (call_member(program->module, "vm_load_executable", NULL, 0, &result))
    return raised(error, path);
  program->machine = result.v_obj;
  TVMFFIAny cpu[] = {number_argument(kDLCPU), number_argument(0), number_argument(2)};
  result = (TVMFFIAny){.type_index = kTVMFFINone};
  if (call_member(program->machine, "vm_initialization", cpu, 3, &result))
    return raised(error, path);
  char needs[256];
  snprintf(needs, sizeof needs, "%s_needs", model->function);
  program->run = function_of(program->machine, model->function);
  program->needs = function_of(program->machine, needs);
  return program->run && program->needs ? ST_OK : raised(error, path);
}

int st_load_program(st_model *model, char *error) {
  if (!model->function || !model->num_inputs || !st_find_file(model, "model.so"))
    return st_fail(error, ST_ARTEFACT, "%s: it has no program", model->path);
  int code = load_runtime(model, error);
  if (code) return code;
  struct st_program *program = model->program = calloc(1, sizeof *program);
  if (!program) return st_fail(error, ST_SYSTEM, "%s: no memory", model->path);
  program->num_fixed = model->num_inputs + model->num_params;
  program->params = calloc((size_t)model->num_params + 1, sizeof *program->params);
  program->arguments = calloc((size_t)program->num_fixed, sizeof *program->arguments);
  program->made = calloc((size_t)model->num_inputs, sizeof *program->made);
  program->starts = calloc(2 * (size_t)model->num_categories + 1, sizeof *program->starts);
  program->counts = program->starts + model->num_categories;
  if (!program->params || !program->arguments || !program->made || !program->starts)
    return st_fail(error, ST_SYSTEM, "%s: no memory", model->path);
  for (int i = 0; i < model->num_params; i++) {
    const st_param *param = &model->params[i];
    tensor *made = &program->params[i];
    if (wrap(made, param->data, param->kind, param->bits, param->ndim, param->shape))
      return raised(error, model->path);
    program->arguments[model->num_inputs + i] = object_argument(made->handle, kTVMFFITensor);
  }
  return load_machine(model, program, error);
}

void st_free_program(struct st_program *program) {
  if (!program) return;
  const TVMFFIObjectHandle held[] = {program->run, program->needs, program->machine,
                                     program->module};
  for (size_t i = 0; i < sizeof held / sizeof *held; i++)
    if (held[i]) TVMFFIObjectDecRef(held[i]);
  for (int i = 0; program->params && program->params[i].handle; i++)
    TVMFFIObjectDecRef(program->params[i].handle);
  free(program->params);
  free(program->made);
  free(program->starts);
  free(program->arguments);
  free(program->work);
  free(program->inputs.data);
  free(program->scratch.data);
  free(program);
}

static size_t aligned(size_t bytes) {
  return (bytes + ST_ALIGNMENT - 1) / ST_ALIGNMENT * ST_ALIGNMENT;
}

/* At least so many bytes; what was there is lost. */
static int reserve(block *memory, size_t bytes, char *error) {
  if (bytes <= memory->size) return ST_OK;
  free(memory->data);
  *memory = (block){NULL, 0};
  if (posix_memalign((void **)&memory->data, ST_ALIGNMENT, bytes))
    return st_fail(error, ST_SYSTEM, "no memory for a request: %zu bytes", bytes);
  memory->size = bytes;
  return ST_OK;
}

static int64_t width_of(const st_model *model) {
  int64_t width = model->num_dense * (1 + model->flags);
  for (int v = 0; v < model->num_vectors; v++) width += model->vectors[v].width;
  return width ? width : 1;
}

static int64_t rounded(int64_t count) {
  return (count + APART - 1) / APART * APART;
}

/* Where the ids of each feature begin; returns where the last ones end. */
static int64_t place_ids(const st_model *model, const st_column *columns, int64_t begin,
                         int64_t end) {
  struct st_program *program = model->program;
  int64_t at = 0;
  for (int f = 0; f < model->num_categories; f++) {
    program->starts[f] = at;
    program->counts[f] = st_count_ids(model, &model->categories[f], columns, begin, end);
    at += model->apart ? rounded(program->counts[f]) : program->counts[f];
  }
  return at;
}

/* Where each input lies in the memory of all, and the bytes of that. */
static size_t place_inputs(const st_model *model, int64_t rows, int64_t ids, size_t places[]) {
  int64_t offsets = model->apart ? rounded(rows) * model->num_categories
                                 : rows * model->num_categories + 1;
  size_t bytes[] = {(size_t)(rows * width_of(model)) * 4, (size_t)ids * (size_t)(model->index_bits / 8),
                    (size_t)offsets * 8, (size_t)ids * 4};
  size_t total = 0;
  for (int i = 0; i < ST_INPUTS; i++) {
    places[i] = total;
    if (model->wants[i] || (i == ST_IN_OFFSETS && model->apart)) total += aligned(bytes[i]);
  }
  return total;
}

static int wrap_input(const st_model *model, const st_inputs *inputs, st_argument input,
                      tensor *made) {
  int64_t rows = inputs->rows, features = model->num_categories;
  int bags = model->wants[ST_IN_OFFSETS] || model->apart, feature = input.feature;
  int64_t start = feature < 0 ? 0 : inputs->starts[feature];
  int64_t ids = feature < 0 ? inputs->ids : model->program->counts[feature];
  int64_t ends = feature < 0 ? features * rows + 1 : rows;
  const struct {
    const void *data;
    int kind, bits, ndim;
    int64_t shape[2];
  } about[] = {
      [ST_IN_DENSE] = {inputs->dense, kDLFloat, 32, 2, {rows, inputs->width}},
      [ST_IN_ROWS] = {(char *)inputs->located + start * (model->index_bits / 8), kDLInt,
                      model->index_bits, bags ? 1 : 2, {bags ? ids : rows, features}},
      [ST_IN_OFFSETS] = {inputs->offsets + (feature < 0 ? 0 : feature * inputs->stride), kDLInt, 64,
                         1, {ends, 0}},
      [ST_IN_WEIGHTS] = {inputs->weights + start, kDLFloat, 32, 1, {ids, 0}},
  }, *one = &about[input.kind];
  return wrap(made, one->data, one->kind, one->bits, one->ndim, one->shape);
}

static int wrap_inputs(const st_model *model, const st_inputs *inputs) {
  struct st_program *program = model->program;
  for (int i = 0; i < model->num_inputs; i++) {
    tensor *made = &program->made[i];
    if (wrap_input(model, inputs, model->inputs[i], made)) return -1;
    program->arguments[i] = object_argument(made->handle, kTVMFFITensor);
  }
  return 0;
}

static int make_room(struct st_program *program, int count, char *error) {
  if (count <= program->room) return ST_OK;
  size_t total = (size_t)(program->num_fixed + count);
  TVMFFIAny *arguments = realloc(program->arguments, total * sizeof *arguments);
  if (arguments) program->arguments = arguments;
  tensor *work = realloc(program->work, (size_t)count * sizeof *work);
  if (work) program->work = work;
  if (!arguments || !work) return st_fail(error, ST_SYSTEM, "no memory for a request");
  program->room = count;
  return ST_OK;
}

static const TVMFFIShapeCell *shape_of(const TVMFFIAny *need) {
  return (const TVMFFIShapeCell *)((const char *)need->v_obj + sizeof(TVMFFIObject));
}

static size_t bytes_of(const TVMFFIShapeCell *need) {
  if (need->data[2] >= 0) return 0; /* it lies within another one */
  size_t bytes = (size_t)need->data[4] / 8;
  for (size_t axis = HEAD; axis < need->size; axis++) bytes *= (size_t)need->data[axis];
  return aligned(bytes);
}

/* Gives the program the memory that it works in; `made` counts its tensors. */
static int wrap_work(struct st_program *program, const TVMFFISeqCell *needs, int *made,
                     char *error) {
  static const uint8_t kinds[] = {kDLInt, kDLUInt, kDLFloat, kDLBfloat};
  const TVMFFIAny *each = needs->data;
  int count = (int)needs->size, code = make_room(program, count, error);
  size_t total = 0, at = 0;
  for (int i = 0; i < count; i++) total += bytes_of(shape_of(&each[i]));
  if (!code) code = reserve(&program->scratch, total, error);
  for (; !code && *made < count; ++*made) {
    const TVMFFIShapeCell *need = shape_of(&each[*made]);
    const int64_t *row = need->data;
    tensor *work = &program->work[*made];
    const char *data = row[2] < 0 ? program->scratch.data + at
                                  : program->work[row[2]].managed.dl_tensor.data;
    if (wrap(work, data, kinds[row[3]], (int)row[4], (int)(need->size - HEAD), row + HEAD))
      return raised(error, "a request");
    program->arguments[program->num_fixed + *made] = object_argument(work->handle, kTVMFFITensor);
    at += bytes_of(need);
  }
  return code;
}

/* Probabilities of binary labels, by way of float64; values of real ones. */
static int read_scores(const st_model *model, const float *scores, int64_t rows, int64_t first,
                       float *predictions, char *error) {
  int labels = model->num_labels;
  for (int64_t at = 0; at < rows * labels; at++) {
    if (!isfinite(scores[at]))
      return st_fail(error, ST_NUMERICAL,
                     "row %lld: the score is %f: its inputs or weights are too large",
                     (long long)(first + at / labels), scores[at]);
    predictions[at] = model->is_binary[at % labels] ? (float)(1 / (1 + exp(-(double)scores[at])))
                                                    : scores[at];
  }
  return ST_OK;
}

/* The program's answer to the inputs that it was given. */
static int call(st_model *model, int64_t rows, int64_t first, float *predictions, char *error) {
  struct st_program *program = model->program;
  TVMFFIAny needs = {.type_index = kTVMFFINone}, result = {.type_index = kTVMFFINone};
  if (TVMFFIFunctionCall(program->needs, program->arguments, program->num_fixed, &needs))
    return raised(error, "a request");
  int made = 0;
  int code = wrap_work(program, (TVMFFISeqCell *)((char *)needs.v_obj + sizeof(TVMFFIObject)),
                       &made, error);
  if (!code && TVMFFIFunctionCall(program->run, program->arguments, program->num_fixed + made,
                                  &result))
    code = raised(error, "a request");
  if (!code) {
    const DLTensor *scores = (const DLTensor *)((char *)result.v_obj + sizeof(TVMFFIObject));
    code = read_scores(model, scores->data, rows, first, predictions, error);
    TVMFFIObjectDecRef(result.v_obj);
  }
  for (int i = 0; i < made; i++) TVMFFIObjectDecRef(program->work[i].handle);
  TVMFFIObjectDecRef(needs.v_obj);
  return code;
}

int st_run_program(st_model *model, const st_column *columns, int64_t begin, int64_t end,
                   float *predictions, char *error) {
  struct st_program *program = model->program;
  int64_t rows = end - begin, ids = rows * model->num_categories;
  if (model->wants[ST_IN_OFFSETS] || model->apart) ids = place_ids(model, columns, begin, end);
  size_t places[ST_INPUTS];
  int code = reserve(&program->inputs, place_inputs(model, rows, ids, places), error);
  if (code) return code;
  char *data = program->inputs.data;
  st_inputs inputs = {.rows = rows,
                      .starts = program->starts,
                      .stride = rounded(rows),
                      .dense = (float *)(data + places[ST_IN_DENSE]),
                      .width = width_of(model),
                      .located = data + places[ST_IN_ROWS],
                      .offsets = (int64_t *)(data + places[ST_IN_OFFSETS]),
                      .weights = (float *)(data + places[ST_IN_WEIGHTS])};
  if ((code = st_encode(model, columns, begin, end, &inputs, error))) return code;
  for (int i = 0; i < model->num_inputs; i++) program->made[i].handle = NULL;
  code = wrap_inputs(model, &inputs) ? raised(error, "a request")
                                     : call(model, rows, begin, predictions, error);
  for (int i = 0; i < model->num_inputs && program->made[i].handle; i++)
    TVMFFIObjectDecRef(program->made[i].handle);
  return code;
}

static int check_arguments(const st_model *model, int64_t rows, const st_column *columns,
                           int count, const float *predictions, char *error) {
  if (!model || !predictions || count < 0 || (count && !columns))
    return st_fail(error, ST_REQUEST, "st_predict: give a model, columns and predictions");
  if (rows < 1) return st_fail(error, ST_REQUEST, "a request needs at least one row");
  if (rows > MAX_ROWS)
    return st_fail(error, ST_REQUEST, "a request has at most %lld rows", (long long)MAX_ROWS);
  for (int i = 0; i < count; i++)
    if (!columns[i].name)
      return st_fail(error, ST_REQUEST, "column number %d has no name", i);
  return ST_OK;
}

ST_PUBLIC int st_predict(st_model *model, int64_t rows, const st_column *columns, int num_columns,
                         float *predictions, char *error) {
  int code = check_arguments(model, rows, columns, num_columns, predictions, error);
  if (code) return code;
  st_column *matched = NULL;
  code = st_match(model, rows, columns, num_columns, &matched, error);
  for (int64_t begin = 0; !code && begin < rows; begin += model->max_rows) {
    pthread_mutex_lock(&model->lock);  // small requests need not wait for all of a large one
    int64_t end = begin + model->max_rows < rows ? begin + model->max_rows : rows;
    code = st_run_program(model, matched, begin, end, predictions + begin * model->num_labels,
                          error);
    pthread_mutex_unlock(&model->lock);
  }
  free(matched);
  return code;
}
