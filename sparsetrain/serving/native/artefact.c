/* SPDX-License-Identifier: Apache-2.0
 *
 * An exported folder: checked byte by byte, its manifest read, large tables mapped read-only.
 *
 * The manifest is text: a record a line, fields between tabs, and last the CRC-32 of all before it.
 * It names every other file with its size and CRC-32. Whoever can write the folder can write
 * matching ones, and code, so it and all folders above it must belong to this user or root and be
 * writable by no other. They are checked by descriptor, before anything in them is read.
 *
 * A mapped file must keep its bytes: one that is made shorter in its place ends the process. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

#define MANIFEST "manifest.txt"
#define MAX_MANIFEST (16 << 20)
#define MAX_WIDTH (1 << 16)   /* of a vector */
#define MAPPED_FROM (1 << 20) /* bytes; smaller files are read */
#define MAX_FIELDS 20

int st_fail(char *error, int code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (error) vsnprintf(error, ST_ERROR_SIZE, format, arguments);
  va_end(arguments);
  return code;
}

/* CRC-32 of zlib, 16 bytes a step: crc_table[k] is the CRC of a byte followed by k zeros. */
static uint32_t crc_table[16][256];
static pthread_once_t crc_once = PTHREAD_ONCE_INIT;

static void fill_crc_table(void) {
  for (int byte = 0; byte < 256; byte++) {
    uint32_t crc = (uint32_t)byte;
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    crc_table[0][byte] = crc;
  }
  for (int k = 1; k < 16; k++)
    for (int byte = 0; byte < 256; byte++) {
      uint32_t before = crc_table[k - 1][byte];
      crc_table[k][byte] = before >> 8 ^ crc_table[0][before & 255];
    }
}

/* The CRC-32 of more bytes, behind those that have the given one. */
static uint32_t extended_crc(uint32_t crc, const uint8_t *data, size_t size) {
  pthread_once(&crc_once, fill_crc_table);
  crc = ~crc;
  for (; size >= 16; data += 16, size -= 16) {
    uint32_t words[4], next = 0;
    memcpy(words, data, 16);
    words[0] ^= crc;
    for (int w = 0; w < 4; w++)
      for (int byte = 0; byte < 4; byte++)
        next ^= crc_table[15 - 4 * w - byte][words[w] >> 8 * byte & 255];
    crc = next;
  }
  while (size--) crc = crc >> 8 ^ crc_table[0][(crc ^ *data++) & 255];
  return ~crc;
}

uint32_t st_crc32(const uint8_t *data, size_t size) { return extended_crc(0, data, size); }

static int check_private(const char *name, const struct stat *status, char *error) {
  if (status->st_uid != geteuid() && status->st_uid != 0)
    return st_fail(error, ST_ARTEFACT, "%s: it belongs to another user: chown it", name);
  if (status->st_mode & 022)
    return st_fail(error, ST_ARTEFACT, "%s: others may write it: chmod go-w", name);
  return ST_OK;
}

/* Whether another user may put something else in the place of what lies in a folder. With the
 * sticky bit, as /tmp has it, only who owns it may. */
static int check_parent(int folder, const char *name, char *error) {
  struct stat status;
  if (folder < 0 || fstat(folder, &status))
    return st_fail(error, ST_ARTEFACT, "%s: %s", name, strerror(errno));
  if (status.st_mode & S_ISVTX) status.st_mode &= ~022u;
  return check_private(name, &status, error);
}

/* Follows a path without links, and checks each folder before it looks into it. */
static int open_private(const char *path, int *folder, char *error) {
  const int flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  char name[PATH_MAX + 1] = "/", copy[PATH_MAX + 1], *rest = copy, *part;
  snprintf(copy, sizeof copy, "%s", path + 1);
  *folder = open(name, flags);
  int code = check_parent(*folder, name, error);
  while (!code && (part = strsep(&rest, "/")) && *part) {
    int below = openat(*folder, part, flags);
    close(*folder);
    *folder = below;
    snprintf(name, sizeof name, "%.*s", (int)(part - copy + 1 + strlen(part)), path);
    code = check_parent(below, name, error);
  }
  return code;
}

/* Opens a regular file of the folder that only its owner may write. */
static int open_file(const st_model *model, const char *name, int *at, size_t *size, char *error) {
  char path[PATH_MAX + 300];
  struct stat status;
  snprintf(path, sizeof path, "%s/%s", model->path, name);
  *at = openat(model->folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (*at < 0 || fstat(*at, &status))
    return st_fail(error, ST_ARTEFACT, "%s: %s", path, strerror(errno));
  *size = (size_t)status.st_size;
  return S_ISREG(status.st_mode) ? check_private(path, &status, error)
                                 : st_fail(error, ST_ARTEFACT, "%s: no regular file", path);
}

/* Whether so many bytes could be read. */
static int read_bytes(int at, uint8_t *to, size_t size, size_t from) {
  for (ssize_t got; size; to += got, from += (size_t)got, size -= (size_t)got) {
    do got = pread(at, to, size, (off_t)from);
    while (got < 0 && errno == EINTR);
    if (got <= 0) return 0;
  }
  return 1;
}

static int same_crc(int at, size_t size, uint32_t crc) {
  static const size_t most = 1 << 18;
  uint8_t *block = malloc(most);
  uint32_t found = 0;
  int whole = block != NULL;
  for (size_t from = 0; whole && from < size; from += most) {
    size_t count = size - from < most ? size - from : most;
    whole = read_bytes(at, block, count, from);
    if (whole) found = extended_crc(found, block, count);
  }
  free(block);
  return whole && found == crc;
}

static int damaged(const st_model *model, const char *name, char *error) {
  return st_fail(error, ST_ARTEFACT, "%s/%s: it is damaged: copy the folder again", model->path,
                 name);
}

/* Checks an opened file: a small one is read, a large one mapped once its bytes are known. */
static int load_file(const st_model *model, st_file *file, int at, uint32_t crc, char *error) {
  void *data = NULL;
  int same, held = 1;
  if (file->size >= MAPPED_FROM) {
    same = same_crc(at, file->size, crc);
    if (same) data = mmap(NULL, file->size, PROT_READ, MAP_SHARED | MAP_POPULATE, at, 0);
    held = data != MAP_FAILED;
    file->mapped = same && held;
  } else {
    held = !posix_memalign(&data, ST_ALIGNMENT, file->size + 1);
    same = held && read_bytes(at, data, file->size, 0) && st_crc32(data, file->size) == crc;
  }
  if (!held) return st_fail(error, ST_SYSTEM, "%s/%s: no memory", model->path, file->name);
  file->data = data;
  return same ? ST_OK : damaged(model, file->name, error);
}

const st_file *st_find_file(const st_model *model, const char *name) {
  for (int i = 0; i < model->num_files; i++)
    if (!strcmp(model->files[i].name, name)) return &model->files[i];
  return NULL;
}

/* A record of the manifest; reading a field that is not there marks it. */
typedef struct {
  char *fields[MAX_FIELDS];
  int count, next, bad;
} record;

static char *text_of(record *line) {
  if (line->next < line->count) return line->fields[line->next++];
  line->bad = 1;
  return "";
}

static int64_t number_of(record *line) {
  char *text = text_of(line), *end;
  int64_t number = strtoll(text, &end, 10);
  line->bad |= !*text || *end;
  return number;
}

static uint64_t bits_of(record *line) {
  char *text = text_of(line), *end;
  uint64_t bits = strtoull(text, &end, 16);
  line->bad |= !*text || *end;
  return bits;
}

static double float_of(record *line) {
  uint64_t bits = bits_of(line);
  double number;
  memcpy(&number, &bits, 8);
  return number;
}

/* Names have %XX for control characters and for %. */
static void unescape(char *text) {
  char *to = text;
  for (; *text; text++) {
    unsigned byte;
    if (*text == '%' && sscanf(text + 1, "%2x", &byte) == 1) {
      *to++ = (char)byte;
      text += 2;
    } else {
      *to++ = *text;
    }
  }
  *to = 0;
}

static record split(char *line) {
  record found = {.count = 0};
  for (char *field; found.count < MAX_FIELDS && (field = strsep(&line, "\t"));) {
    unescape(field);
    found.fields[found.count++] = field;
  }
  return found;
}

/* One more element of an array. */
static void *grown(void **array, int *count, size_t size) {
  void *larger = realloc(*array, (size_t)(*count + 1) * size);
  if (!larger) abort(); /* a few hundred bytes */
  *array = larger;
  return memset((char *)larger + (size_t)(*count)++ * size, 0, size);
}
#define GROWN(array, count) grown((void **)&(array), &(count), sizeof *(array))

static int check_cpu(record *line, char *error) {
  const char *level = text_of(line), *wanted = text_of(line);
  char flags[8192] = "";
  FILE *info = fopen("/proc/cpuinfo", "re");
  while (info && fgets(flags, sizeof flags, info) && strncmp(flags, "flags", 5)) continue;
  if (info) fclose(info);
  flags[strcspn(flags, "\n")] = ' ';
  while (*wanted) {
    char flag[64];
    int length = (int)strcspn(wanted, " ");
    snprintf(flag, sizeof flag, " %.*s ", length, wanted);
    if (!strstr(flags, flag))
      return st_fail(error, ST_ARTEFACT,
                     "it was exported for the CPU level %s, and this CPU lacks%s: "
                     "export with another --cpu",
                     level, (flag[length + 1] = 0, flag));
    wanted += length + (wanted[length] == ' ');
  }
  return ST_OK;
}

static void read_input(st_model *model, record *line) {
  static const char *const names[] = {"dense", "rows", "offsets", "weights"};
  const char *name = text_of(line);
  st_argument *input = GROWN(model->inputs, model->num_inputs);
  input->feature = (int)number_of(line);
  model->apart |= input->feature >= 0;
  int kind = 0;
  while (kind < ST_INPUTS && strcmp(name, names[kind])) kind++;
  if (kind == ST_INPUTS)
    line->bad = 1;
  else
    model->wants[input->kind = (st_input)kind] = 1;
}

static void read_vector(st_model *model, record *line) {
  int64_t width = number_of(line);
  line->bad |= width < 1 || width > MAX_WIDTH;
  while (!line->bad && width--) GROWN(model->is_binary, model->num_labels);
}

static void read_param(st_model *model, record *line) {
  st_param *param = GROWN(model->params, model->num_params);
  const st_file *file = st_find_file(model, text_of(line));
  param->kind = (int)number_of(line);
  param->bits = (int)number_of(line);
  int64_t bytes = param->bits / 8;
  while (line->next < line->count && param->ndim < 4)
    bytes *= param->shape[param->ndim++] = number_of(line);
  line->bad |= !file || (int64_t)file->size != bytes;
  param->data = file ? file->data : NULL;
}

static void read_category(st_model *model, record *line) {
  st_category *category = GROWN(model->categories, model->num_categories);
  category->column = number_of(line);
  category->first = number_of(line);
  category->rows = number_of(line);
  category->is_bag = (int)number_of(line);
  category->max_length = number_of(line);
  category->keep_last = (int)number_of(line);
  category->weights = number_of(line);
  category->is_single = (int)number_of(line);
  category->length = number_of(line);
  category->like = number_of(line);
  line->bad |= category->like >= model->num_categories;
  category->hexadecimal = (int)number_of(line);
  category->wraps = model->wraps || category->hexadecimal == 1;
  const st_file *values = st_find_file(model, "values.bin");
  if (line->next == line->count) return;
  line->bad |= !values;
  int64_t at[3], limit = values ? (int64_t)values->size : 0;
  for (int i = 0; i < 3; i++) line->bad |= (at[i] = number_of(line)) > limit;
  category->number_bits = (int)number_of(line);
  category->text_bits = (int)number_of(line);
  if (line->bad) return;
  category->numbers = (const st_number_slot *)(values->data + at[0]);
  category->texts = (const st_text_slot *)(values->data + at[1]);
  category->pool = values->data + at[2];
}

static int read_file(st_model *model, record *line, char *error) {
  const char *name = text_of(line);
  int64_t size = number_of(line);
  uint32_t crc = (uint32_t)bits_of(line);
  st_file *file = GROWN(model->files, model->num_files);
  file->name = name;
  int at, code = open_file(model, name, &at, &file->size, error);
  if (!code && (int64_t)file->size != size)
    code = damaged(model, name, error);
  else if (!code)
    code = load_file(model, file, at, crc, error);
  if (at >= 0) close(at);
  return code;
}

static int read_record(st_model *model, record *line, char *error) {
  const char *kind = text_of(line);
  if (!strcmp(kind, "cpu")) return check_cpu(line, error);
  if (!strcmp(kind, "file")) return read_file(model, line, error);
  if (!strcmp(kind, "program")) {
    model->function = text_of(line);
    model->max_rows = number_of(line);
    model->index_bits = (int)number_of(line);
  } else if (!strcmp(kind, "encoding")) {
    model->encoded = (int)number_of(line);
    model->flags = (int)number_of(line);
    model->nan_is_missing = (int)number_of(line);
    model->fill = float_of(line);
    model->wraps = (int)number_of(line);
  } else if (!strcmp(kind, "input")) {
    read_input(model, line);
  } else if (!strcmp(kind, "param")) {
    read_param(model, line);
  } else if (!strcmp(kind, "label")) {
    text_of(line);
    *(int *)GROWN(model->is_binary, model->num_labels) = !strcmp(text_of(line), "binary");
  } else if (!strcmp(kind, "vector")) {
    read_vector(model, line);
  } else if (!strcmp(kind, "column")) {
    *(const char **)GROWN(model->columns, model->num_columns) = text_of(line);
  } else if (!strcmp(kind, "derived")) {
    st_derived *derived = GROWN(model->derived, model->num_derived);
    derived->name = text_of(line);
    derived->source = number_of(line);
    derived->divide = number_of(line);
    derived->modulo = number_of(line);
  } else if (!strcmp(kind, "dense")) {
    st_dense *dense = GROWN(model->dense, model->num_dense);
    dense->column = number_of(line);
    dense->linear = (int)number_of(line);
    dense->center = float_of(line);
    dense->scale = float_of(line);
  } else if (!strcmp(kind, "numbers")) {
    st_vector *vector = GROWN(model->vectors, model->num_vectors);
    vector->column = number_of(line);
    vector->width = number_of(line);
    line->bad |= vector->width < 1 || vector->width > MAX_WIDTH;
  } else if (!strcmp(kind, "category")) {
    read_category(model, line);
  } else {
    line->bad |= strcmp(kind, "made") != 0;
  }
  return ST_OK;
}

static int read_text(st_model *model, size_t *size, char *error) {
  int at, code = open_file(model, MANIFEST, &at, size, error);
  if (!code && (!*size || *size > MAX_MANIFEST))
    code = st_fail(error, ST_ARTEFACT, "%s: no manifest of an exported model", model->path);
  if (!code && !(model->text = calloc(1, *size + 1)))
    code = st_fail(error, ST_SYSTEM, "%s: no memory", model->path);
  if (!code && !read_bytes(at, (uint8_t *)model->text, *size, 0))
    code = damaged(model, MANIFEST, error);
  if (at >= 0) close(at);
  return code;
}

static int read_manifest(st_model *model, char *error) {
  size_t size;
  int code = read_text(model, &size, error);
  if (code) return code;
  char *text = model->text, *end = memmem(text, strlen(text), "\nend\t", 5);
  int format = 0;
  if (sscanf(text, "sparsetrain.serving\t%d\n", &format) != 1 || format != ST_FORMAT)
    return st_fail(error, ST_ARTEFACT,
                   "%s: it is not an export of format %d, which this library reads: export it again",
                   model->path, ST_FORMAT);
  if (!end || strlen(text) != size || strlen(end + 5) != 9 ||
      strtoul(end + 5, NULL, 16) != st_crc32((uint8_t *)text, (size_t)(end + 1 - text)))
    return damaged(model, MANIFEST, error);
  *end = 0;
  strsep(&text, "\n");
  for (char *line; !code && (line = strsep(&text, "\n"));) {
    record fields = split(line);
    code = read_record(model, &fields, error);
    if (!code && fields.bad)
      code = st_fail(error, ST_ARTEFACT, "%s/%s: %s is garbled", model->path, MANIFEST,
                     fields.fields[0]);
  }
  return code;
}

static int open_folder(st_model *model, const char *folder, char *error) {
  struct stat status;
  model->path = realpath(folder, NULL);
  if (!model->path) return st_fail(error, ST_ARTEFACT, "%s: %s", folder, strerror(errno));
  int code = open_private(model->path, &model->folder, error);
  if (!code && fstat(model->folder, &status))
    code = st_fail(error, ST_ARTEFACT, "%s: %s", folder, strerror(errno));
  return code ? code : check_private(model->path, &status, error);
}

ST_PUBLIC int st_open(const char *folder, st_model **opened, char *error) {
  if (opened) *opened = NULL;
  if (!folder || !opened) return st_fail(error, ST_REQUEST, "st_open: give a folder and a model");
  st_model *model = calloc(1, sizeof *model);
  if (!model) return st_fail(error, ST_SYSTEM, "%s: no memory", folder);
  model->folder = -1;
  pthread_mutex_init(&model->lock, NULL);
  int code = open_folder(model, folder, error);
  if (!code) code = read_manifest(model, error);
  if (!code) code = st_load_program(model, error);
  if (code)
    st_close(model);
  else
    *opened = model;
  return code;
}

ST_PUBLIC void st_close(st_model *model) {
  if (!model) return;
  st_free_program(model->program);
  for (int i = 0; i < model->num_files; i++) {
    void *data = (void *)model->files[i].data;
    if (model->files[i].mapped)
      munmap(data, model->files[i].size);
    else
      free(data);
  }
  if (model->folder >= 0) close(model->folder);
  void *const owned[] = {model->path,    model->text,    model->files,   model->dense,
                         model->derived, model->params,  model->columns, model->categories,
                         model->inputs,  model->is_binary, model->vectors};
  for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
  pthread_mutex_destroy(&model->lock);
  free(model);
}

ST_PUBLIC int st_num_columns(const st_model *model) { return model ? model->num_columns : 0; }

ST_PUBLIC const char *st_column_name(const st_model *model, int index) {
  return index >= 0 && index < st_num_columns(model) ? model->columns[index] : NULL;
}

ST_PUBLIC int st_num_labels(const st_model *model) { return model ? model->num_labels : 0; }
