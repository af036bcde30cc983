/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the compiled program and the kernels that find ids: loads TVM's runtime, and weights as tensors.
 *
 * All calls use the C ABI of apache-tvm-ffi. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tvm/ffi/c_api.h>

#include "internal.h"

#define MAX_ROWS ((int64_t)1 << 40) /* rows of a request: products with this limit fit 64 bits */
#define WORD 8 /* bytes of text that a kernel reads at once */

typedef struct {
  DLManagedTensor managed;
  int64_t shape[4];
} tensor;

struct st_state {
  TVMFFIObjectHandle module, machine, run, find[2]; /* find: kernels for ids of numbers, of texts */
  TVMFFIAny *arguments;                             /* inputs and params */
  tensor *tensors;                                  /* tensors of the arguments, then the hash tables */
  void *memory;                                     /* buffer for a request; it only grows */
  size_t size;
  int64_t last, pooled; /* rows and ids of the last request; sum over all different sizes */
};

/* The message of TVM's error, without its traceback. */
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

static void release(TVMFFIObjectHandle object) {
  if (object) TVMFFIObjectDecRef(object);
}

/* The object that a function returns; NULL if it fails or returns none. */
static TVMFFIObjectHandle object_of(TVMFFIObjectHandle function, TVMFFIAny *arguments, int count) {
  TVMFFIAny result = {.type_index = kTVMFFINone};
  int failed = !function || TVMFFIFunctionCall(function, arguments, count, &result);
  return failed || result.type_index < kTVMFFIStaticObjectBegin ? NULL : result.v_obj;
}

/* The same, for a global function of the runtime. */
static TVMFFIObjectHandle global_object(const char *name, TVMFFIAny *arguments, int count) {
  TVMFFIByteArray key = {name, strlen(name)};
  TVMFFIObjectHandle function = NULL, object;
  if (TVMFFIFunctionGetGlobal(&key, &function)) return NULL;
  object = object_of(function, arguments, count);
  release(function);
  return object;
}

static TVMFFIObjectHandle function_of(TVMFFIObjectHandle module, const char *name) {
  TVMFFIAny arguments[] = {{.type_index = kTVMFFIModule, .v_obj = module},
                           {.type_index = kTVMFFIRawStr, .v_c_str = name},
                           {.type_index = kTVMFFIBool, .v_int64 = 1}};
  return module ? global_object("ffi.ModuleGetFunction", arguments, 3) : NULL;
}

/* The runtime that this process has already loaded, else the folder's. */
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

static int load_code(const st_model *model, struct st_state *program, char *error) {
  char path[4400];
  snprintf(path, sizeof path, "%s/model.so", model->path);
  TVMFFIAny file = {.type_index = kTVMFFIRawStr, .v_c_str = path}, none = {.type_index = kTVMFFINone};
  /* On the CPU, with a pool; see `limit_pool`. */
  TVMFFIAny cpu[] = {{.type_index = kTVMFFIInt, .v_int64 = kDLCPU},
                     {.type_index = kTVMFFIInt, .v_int64 = 0},
                     {.type_index = kTVMFFIInt, .v_int64 = 2}};
  program->module = global_object("ffi.ModuleLoadFromFile", &file, 1);
  TVMFFIObjectHandle load = function_of(program->module, "vm_load_executable");
  program->machine = object_of(load, NULL, 0);
  TVMFFIObjectHandle start = function_of(program->machine, "vm_initialization");
  int failed = !start || TVMFFIFunctionCall(start, cpu, 3, &none);
  release(load);
  release(start);
  program->find[0] = function_of(program->module, "key_number_ids");
  program->find[1] = function_of(program->module, "key_text_ids");
  if (!failed) program->run = function_of(program->machine, model->program->function);
  return program->run && program->find[0] && program->find[1] ? ST_OK : raised(error, path);
}

/* A tensor that does not own its memory. */
static tensor *describe(tensor *made, const void *data, int64_t kind, int64_t bits, int ndim,
                        const int64_t *shape) {
  memcpy(made->shape, shape, (size_t)ndim * sizeof *shape);
  made->managed = (DLManagedTensor){.dl_tensor = {.data = (void *)data,
                                                  .device = {kDLCPU, 0},
                                                  .ndim = ndim,
                                                  .dtype = {(uint8_t)kind, (uint8_t)bits, 1},
                                                  .shape = made->shape}};
  return made;
}

/* Makes a tensor an argument of the program. */
static int wrap(tensor *made, TVMFFIAny *argument) {
  TVMFFIObjectHandle handle = NULL;
  int failed = TVMFFITensorFromDLPack(&made->managed, 0, 0, &handle);
  *argument = (TVMFFIAny){.type_index = kTVMFFITensor, .v_obj = handle};
  return failed;
}

/* A file as a tensor. */
static int describe_file(const st_model *model, const st_array *array, tensor *made, char *error) {
  int64_t bytes = array->bits / 8;
  int ndim = 0;
  while (ndim < 4 && array->shape[ndim]) bytes *= array->shape[ndim++];
  for (const st_file *file = model->files; file < model->files + model->num_files; file++)
    if (!strcmp(file->name, array->file) && file->size == bytes)
      return describe(made, file->data, array->kind, array->bits, ndim, array->shape), ST_OK;
  return st_fail(error, ST_ARTEFACT, "%s/%s: it has another size", model->path, array->file);
}

int st_load_program(st_model *model, char *error) {
  int64_t fixed = model->num_inputs + model->num_params, all = fixed + model->num_tables;
  int code = load_runtime(model, error);
  struct st_state *program = model->state = calloc(1, sizeof *program);
  if (program) program->arguments = calloc((size_t)fixed, sizeof *program->arguments);
  if (program) program->tensors = calloc((size_t)all, sizeof *program->tensors);
  if (!program || !program->arguments || !program->tensors)
    return st_fail(error, ST_SYSTEM, "%s: no memory", model->path);
  for (int64_t i = model->num_inputs; !code && i < all; i++) {
    const st_array *array = i < fixed ? &model->params[i - model->num_inputs]
                                      : &model->tables[i - fixed];
    code = describe_file(model, array, &program->tensors[i], error);
    if (!code && i < fixed && wrap(&program->tensors[i], &program->arguments[i]))
      code = raised(error, model->path);
  }
  return code ? code : load_code(model, program, error);
}

void st_free_program(st_model *model) {
  struct st_state *program = model->state;
  if (!program) return;
  for (int64_t i = 0; program->arguments && i < model->num_params; i++)
    release(program->arguments[model->num_inputs + i].v_obj);
  const TVMFFIObjectHandle held[] = {program->run, program->find[0], program->find[1],
                                     program->machine, program->module};
  for (size_t i = 0; i < sizeof held / sizeof *held; i++) release(held[i]);
  free(program->memory);
  free(program->tensors);
  free(program->arguments);
  free(program);
}

int64_t st_rounded(int64_t ids) { return (ids + ST_ALIGNMENT - 1) / ST_ALIGNMENT * ST_ALIGNMENT; }

/* The offset of the next array, with `count` elements. */
static void *next(char *memory, size_t *at, int64_t count, size_t size) {
  void *array = (void *)((uintptr_t)memory + *at);
  *at += (size_t)st_rounded((int64_t)((size_t)count * size));
  return array;
}

/* Lays out the arrays of a request in one buffer; returns its size. */
static size_t place(const st_model *model, st_inputs *inputs, char *memory) {
  int64_t ids = inputs->most_ids, bags = model->program->bags;
  size_t at = 0;
  inputs->dense = next(memory, &at, (inputs->end - inputs->begin) * model->program->width, 4);
  inputs->located = next(memory, &at, ids, (size_t)model->program->index_bits / 8);
  inputs->offsets = next(memory, &at, bags ? inputs->stride * model->num_categories + 1 : 0, 8);
  inputs->weights = next(memory, &at, bags ? ids : 0, 4);
  inputs->text = next(memory, &at, inputs->text_bytes, 1);
  for (int i = 0; i < 2; i++) {
    st_batch *batch = &inputs->batches[i];
    batch->values = next(memory, &at, ids + 1, 8);
    batch->missing = next(memory, &at, ids, 1);
    batch->known = next(memory, &at, ids, 4);
    batch->ids = next(memory, &at, ids, 4);
  }
  return at;
}

/* Allocates memory for the largest numbers of ids and bytes of text in a request. */
static int make_room(const st_model *model, st_inputs *inputs, char *error) {
  struct st_state *state = model->state;
  for (int64_t f = 0; f < model->num_categories; f++) {
    const st_column *column = inputs->columns[model->categories[f].of.column];
    int64_t first = column->bags ? column->bags[inputs->begin] : inputs->begin;
    int64_t last = column->bags ? column->bags[inputs->end] : inputs->end;
    int64_t alone = model->categories[f].together == model->num_categories;
    inputs->most_ids += alone ? last - first : st_rounded(last - first);
    if (column->type == ST_TEXT && first < last)
      inputs->text_bytes += column->offsets[last] - column->offsets[first];
  }
  size_t size = place(model, inputs, NULL);
  if (size > state->size) {
    free(state->memory);
    state->size = posix_memalign(&state->memory, ST_ALIGNMENT, size) ? 0 : size;
    if (!state->size) state->memory = NULL;
    if (!state->size) return st_fail(error, ST_SYSTEM, "no memory for a request: %zu bytes", size);
  }
  place(model, inputs, state->memory);
  return ST_OK;
}

/* Finds the ids of a batch, by one call for all columns. */
static int find_ids(const st_model *model, const st_inputs *inputs, int is_text, char *error) {
  struct st_state *program = model->state;
  const st_batch *batch = &inputs->batches[is_text];
  int64_t count = batch->count, ends = count + is_text;
  if (!count || !model->num_tables) return ST_OK;
  tensor made[5], *tables = program->tensors + model->num_inputs + model->num_params;
  tensor *all[] = {describe(&made[0], inputs->text, kDLUInt, 8, 1, &inputs->text_bytes),
                   describe(&made[1], batch->values, kDLInt, 64, 1, &ends),
                   describe(&made[2], batch->missing, kDLUInt, 8, 1, &count),
                   describe(&made[3], batch->known, kDLInt, 32, 1, &count),
                   &tables[0], &tables[1], &tables[2], &tables[3], &tables[4],
                   describe(&made[4], batch->ids, kDLInt, 32, 1, &count)};
  enum { COUNT = sizeof all / sizeof *all };
  TVMFFIAny arguments[COUNT], none = {.type_index = kTVMFFINone};
  for (int i = 0; i < COUNT; i++)
    arguments[i] = (TVMFFIAny){.type_index = kTVMFFIDLTensorPtr, .v_ptr = &all[i]->managed.dl_tensor};
  int first = !is_text; /* numbers have no text */
  return TVMFFIFunctionCall(program->find[is_text], arguments + first, COUNT - first, &none)
             ? raised(error, "a request")
             : ST_OK;
}

static int wrap_input(const st_model *model, const st_inputs *inputs, int64_t at) {
  int64_t rows = inputs->end - inputs->begin, bits = model->program->index_bits;
  int64_t feature = model->inputs[at].feature < 0 ? 0 : model->inputs[at].feature;
  const st_category none = {.together = 1};
  const st_category *one = model->num_categories ? &model->categories[feature] : &none;
  int64_t features = one->together, start = one->start;
  int64_t ids = one[features - 1].start + one[features - 1].count - start;
  const struct {
    const void *data;
    int64_t kind, bits, shape[2];
    int ndim;
  } about[] = {
      [ST_IN_DENSE] = {inputs->dense, kDLFloat, 32, {rows, model->program->width}, 2},
      [ST_IN_ROWS] = {(char *)inputs->located + start * bits / 8, kDLInt, bits,
                      {model->program->bags ? ids : rows, features}, model->program->bags ? 1 : 2},
      [ST_IN_OFFSETS] = {inputs->offsets + feature * inputs->stride, kDLInt, 64,
                         {model->program->apart ? rows : features * rows + 1}, 1},
      [ST_IN_WEIGHTS] = {inputs->weights + start, kDLFloat, 32, {ids}, 1},
  }, *is = &about[model->inputs[at].kind];
  tensor *made = &model->state->tensors[at];
  return wrap(describe(made, is->data, is->kind, is->bits, is->ndim, is->shape),
              &model->state->arguments[at]);
}

/* Probabilities of binary labels, computed in float64; values of real labels, and vectors. */
static int read_scores(const st_model *model, const float *scores, const st_inputs *inputs,
                       float *predictions, char *error) {
  int64_t labels = st_num_labels(model), count = (inputs->end - inputs->begin) * labels;
  for (int64_t at = 0; at < count; at++) {
    if (!isfinite(scores[at]))
      return st_fail(error, ST_NUMERICAL,
                     "row %lld: the score is %f: its inputs or weights are too large",
                     (long long)(inputs->begin + at / labels), scores[at]);
    int is_binary = model->num_labels && *model->labels[at % labels].kind == 'b';
    predictions[at] = is_binary ? (float)(1 / (1 + exp(-(double)scores[at]))) : scores[at];
  }
  return ST_OK;
}

/* Empties TVM's pool, which keeps a block for every size, once it may hold two large requests. */
static void limit_pool(const st_model *model, const st_inputs *inputs) {
  struct st_state *state = model->state;
  int64_t size = inputs->end - inputs->begin + inputs->ids;
  if (size != state->last) state->pooled += state->last = size;
  if (state->pooled <= 2 * model->program->max_rows * (model->num_categories + 1)) return;
  global_object("vm.builtin.memory_manager.clear", NULL, 0);
  state->pooled = 0;
}

/* Runs the program on the rows of some inputs. */
static int run(const st_model *model, const st_inputs *inputs, float *predictions, char *error) {
  struct st_state *program = model->state;
  int64_t made = 0;
  while (made < model->num_inputs && !wrap_input(model, inputs, made)) made++;
  TVMFFIObjectHandle result = NULL;
  if (made == model->num_inputs)
    result = object_of(program->run, program->arguments, (int)(made + model->num_params));
  int code = result ? ST_OK : raised(error, "a request");
  if (!code) {
    const DLTensor *scores = (const DLTensor *)((char *)result + sizeof(TVMFFIObject));
    code = read_scores(model, scores->data, inputs, predictions, error);
  }
  release(result);
  while (made--) release(program->arguments[made].v_obj);
  return code;
}

static int predict(st_model *model, const st_column *const *columns, int64_t begin, int64_t end,
                   float *predictions, char *error) {
  st_inputs inputs = {.columns = columns,
                      .begin = begin,
                      .end = end,
                      .stride = st_rounded(end - begin + 1),
                      .text_bytes = WORD};
  int code = make_room(model, &inputs, error);
  if (!code) code = st_encode(model, &inputs, error);
  for (int i = 0; !code && i < 2; i++) code = find_ids(model, &inputs, i, error);
  if (!code) st_put_ids(model, &inputs);
  limit_pool(model, &inputs);
  return code ? code : run(model, &inputs, predictions, error);
}

ST_PUBLIC int st_predict(st_model *model, int64_t rows, const st_column *columns, int num_columns,
                         float *predictions, char *error) {
  if (!model || !predictions || num_columns < 0 || (num_columns && !columns))
    return st_fail(error, ST_REQUEST, "st_predict: give a model, columns and predictions");
  if (rows < 1) return st_fail(error, ST_REQUEST, "a request needs at least one row");
  if (rows > MAX_ROWS)
    return st_fail(error, ST_REQUEST, "a request has at most %lld rows", (long long)MAX_ROWS);
  for (int i = 0; i < num_columns; i++)
    if (!columns[i].name) return st_fail(error, ST_REQUEST, "column number %d has no name", i);
  const st_column **matched = calloc((size_t)model->num_columns + 1, sizeof *matched);
  if (!matched) return st_fail(error, ST_SYSTEM, "no memory for a request");
  int code = st_match(model, rows, columns, num_columns, matched, error);
  for (int64_t begin = 0, end; !code && begin < rows; begin = end) {
    end = rows - begin < model->program->max_rows ? rows : begin + model->program->max_rows;
    pthread_mutex_lock(&model->lock); /* per call: small requests may run in between */
    code = predict(model, matched, begin, end, predictions + begin * st_num_labels(model), error);
    pthread_mutex_unlock(&model->lock);
  }
  free(matched);
  return code;
}
