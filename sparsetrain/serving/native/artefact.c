/* SPDX-License-Identifier: Apache-2.0
 *
 * An exported folder: checked byte by byte, its manifest read, large tables mapped read-only.
 *
 * The manifest is text: one record per line, fields separated by tabs, and at the end the Adler-32 of
 * the text before. It lists every other file with its size and checksums. A user who can write the
 * folder could replace files, including code, together with their checksums. So the folder and all
 * folders above it must belong to this user or root, and no other user may write them. They are
 * checked through descriptors before anything in them is read.
 *
 * A mapped file must not change: truncating it in place crashes the process. */
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
#define MAPPED_FROM (1 << 20) /* bytes; smaller files are read */

/* Kinds of records in the order of `st_model`, and their fields: s text, i a number, I an optional
 * number, x 64 bits in hexadecimal, - no field, for the library's own use. */
static const struct {
  const char *name, *fields;
} kinds[] = {{"cpu", "sss"},    {"file", "sisx--"},       {"program", "siiiiiiiii"},
             {"input", "ii"},   {"label", "ss"},          {"column", "s"},
             {"dense", "siiiiiixxx"}, {"category", "siiiiiiiiiiiiiII---"},
             {"param", "siiIIII"}, {"table", "siiIIII"}};
enum { KINDS = sizeof kinds / sizeof *kinds };

int st_fail(char *error, int code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (error) vsnprintf(error, ST_ERROR_SIZE, format, arguments);
  va_end(arguments);
  return code;
}

static int check_private(const char *name, const struct stat *status, char *error) {
  if (status->st_uid != geteuid() && status->st_uid != 0)
    return st_fail(error, ST_ARTEFACT, "%s: it belongs to another user: chown it", name);
  if (status->st_mode & 022)
    return st_fail(error, ST_ARTEFACT, "%s: other users may write it: chmod go-w", name);
  return ST_OK;
}

/* Opens a path without following links, and checks each folder before opening the next one in it.
 * Folders above the last one may have a sticky bit, like /tmp: only owners can then replace entries. */
static int open_folder(st_model *model, const char *folder, char *error) {
  const int flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  const char *end = model->path = realpath(folder, NULL); /* end of the opened part of the path */
  char name[PATH_MAX + 1] = "/";
  if (!end) return st_fail(error, ST_ARTEFACT, "%s: %s", folder, strerror(errno));
  for (int at = open(name, flags), code;;) {
    struct stat status;
    if (at < 0 || fstat(at, &status))
      return st_fail(error, ST_ARTEFACT, "%s: %s", name, strerror(errno));
    if (model->folder >= 0) close(model->folder);
    model->folder = at;
    if (end[0] && end[1] && status.st_mode & S_ISVTX) status.st_mode &= ~022u;
    if ((code = check_private(name, &status, error)) || !end[0] || !end[1]) return code;
    int size = (int)strcspn(end + 1, "/") + 1;
    snprintf(name, sizeof name, "%.*s", size - 1, end + 1);
    at = openat(model->folder, name, flags);
    end += size;
    snprintf(name, sizeof name, "%.*s", (int)(end - model->path), model->path);
  }
}

/* The Adler-32 of zlib; a sum of this many bytes fits 32 bits. */
static uint32_t adler_of(const uint8_t *data, size_t size) {
  uint32_t sum = 1, sums = 0;
  for (size_t part; size; size -= part) {
    part = size < 5552 ? size : 5552;
    for (const uint8_t *end = data + part; data < end; data++) sums += sum += *data;
    sum %= 65521, sums %= 65521;
  }
  return sums << 16 | sum;
}

static int damaged(const st_model *model, const char *name, char *error) {
  return st_fail(error, ST_ARTEFACT, "%s/%s: the file is damaged: copy the folder again", model->path,
                 name);
}

/* Maps or reads a regular file of the folder that only its owner may write, and appends a zero byte.
 * The file must match its record in the manifest; the manifest itself sets `text` and is read. */
static int load_file(const st_model *model, st_file *file, char *error) {
  char path[PATH_MAX + 300];
  struct stat status;
  void *data = NULL;
  snprintf(path, sizeof path, "%s/%s", model->path, file->name);
  int at = openat(model->folder, file->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  int code = ST_OK, held = at >= 0 && !fstat(at, &status), same = 1;
  if (!held)
    code = st_fail(error, ST_ARTEFACT, "%s: %s", path, strerror(errno));
  else if (!S_ISREG(status.st_mode))
    code = st_fail(error, ST_ARTEFACT, "%s: no regular file", path);
  else
    code = check_private(path, &status, error);
  size_t size = code ? 0 : (size_t)status.st_size;
  if (!code && model->text && size >= MAPPED_FROM) {
    data = mmap(NULL, size, PROT_READ, MAP_SHARED | MAP_POPULATE, at, 0);
    file->is_mapped = held = data != MAP_FAILED;
  } else if (!code && (held = !posix_memalign(&data, ST_ALIGNMENT, size + 1))) {
    ((char *)data)[size] = 0;
    same = read(at, data, size) == (ssize_t)size;
  }
  if (at >= 0) close(at);
  if (!code && !held) code = st_fail(error, ST_SYSTEM, "%s: no memory", path);
  if (code) return code;
  same &= !model->text || (size == (size_t)file->size && adler_of(data, size) == file->adler);
  file->data = data;
  file->size = (int64_t)size;
  return same ? ST_OK : damaged(model, file->name, error);
}

/* Decodes %XX in names, which encodes control characters and %. */
static void unescape(char *text) {
  char *to = text;
  for (unsigned byte; *text; text++, to++)
    if ((*to = *text) == '%' && sscanf(text + 1, "%2x", &byte) == 1) *to = (char)byte, text += 2;
  *to = 0;
}

/* Whether a line is a record of a kind; if so, it is appended to the kind's array. */
static int read_record(st_model *model, char *line) {
  const char *name = strsep(&line, "\t");
  int kind = 0, good = 1;
  while (kind < KINDS && strcmp(name, kinds[kind].name)) kind++;
  if (kind == KINDS) return 0;
  size_t fields = strlen(kinds[kind].fields);
  int64_t **rows = &model->records[kind].rows, at = model->records[kind].count++;
  *rows = realloc(*rows, (size_t)(at + 1) * fields * sizeof **rows);
  if (!*rows) abort(); /* out of memory for a few hundred bytes */
  int64_t *field = memset(*rows + (size_t)at * fields, 0, fields * sizeof **rows);
  for (const char *form = kinds[kind].fields; *form; form++, field++) {
    char *text = *form == '-' ? NULL : strsep(&line, "\t"), *end = "";
    if (!text) {
      good &= *form == '-' || *form == 'I';
    } else if (*form == 's') {
      unescape(text);
      memcpy(field, &text, sizeof text);
    } else {
      uint64_t bits = *form == 'x' ? strtoull(text, &end, 16) : (uint64_t)strtoll(text, &end, 10);
      memcpy(field, &bits, sizeof bits);
      good &= *text && !*end;
    }
  }
  return good && !line;
}

static int read_manifest(st_model *model, char *error) {
  st_file file = {.name = MANIFEST};
  int code = load_file(model, &file, error), format = 0;
  char *text = model->text = (char *)file.data;
  if (code) return code;
  char *end = memmem(text, strlen(text), "\nend\t", 5);
  if (sscanf(text, "sparsetrain.serving\t%d\n", &format) != 1 || format != ST_FORMAT)
    return st_fail(error, ST_ARTEFACT,
                   "%s: it is not an export of format %d, which this library reads: export it again",
                   model->path, ST_FORMAT);
  if (!end || (int64_t)strlen(text) != file.size || strlen(end + 5) != 9 ||
      strtoul(end + 5, NULL, 16) != adler_of(file.data, (size_t)(end + 1 - text)))
    return damaged(model, MANIFEST, error);
  *end = 0;
  strsep(&text, "\n");
  for (char *line; !code && (line = strsep(&text, "\n"));)
    if (!read_record(model, line))
      code = st_fail(error, ST_ARTEFACT, "%s/%s: %s is garbled", model->path, MANIFEST, line);
  if (!code && !(model->num_cpu && model->num_program && model->num_inputs))
    code = st_fail(error, ST_ARTEFACT, "%s: it has no program", model->path);
  return code;
}

static int check_cpu(const st_model *model, char *error) {
  char flags[8192] = "", *wanted = model->cpu->flags;
  FILE *info = fopen("/proc/cpuinfo", "re");
  while (info && fgets(flags, sizeof flags, info) && strncmp(flags, "flags", 5)) continue;
  if (info) fclose(info);
  flags[strcspn(flags, "\n")] = ' ';
  for (char flag[64], *name; (name = strsep(&wanted, " "));) {
    snprintf(flag, sizeof flag, " %s ", name);
    if (*name && !strstr(flags, flag))
      return st_fail(error, ST_ARTEFACT,
                     "it was exported for the CPU level %s, and this CPU lacks %s: export with "
                     "another --cpu",
                     model->cpu->level, name);
  }
  return ST_OK;
}

/* Groups features without a recorded group: each alone if the program takes them separately, else all
 * together. */
static void put_together(st_model *model) {
  int64_t apart = model->program->apart, count = model->num_categories;
  for (int64_t f = 0; f < count; f++) {
    st_category *category = &model->categories[f];
    if (!category->together) category->begin = apart ? f : 0, category->together = apart ? 1 : count;
  }
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
  if (!code) put_together(model);
  if (!code) code = check_cpu(model, error);
  for (int64_t i = 0; !code && i < model->num_files; i++)
    code = load_file(model, &model->files[i], error);
  if (!code) code = st_load_program(model, error);
  if (code)
    st_close(model);
  else
    *opened = model;
  return code;
}

ST_PUBLIC void st_close(st_model *model) {
  if (!model) return;
  st_free_program(model);
  for (int64_t i = 0; i < model->num_files; i++) {
    st_file *file = &model->files[i];
    if (file->is_mapped) munmap((void *)file->data, (size_t)file->size);
    if (!file->is_mapped) free((void *)file->data);
  }
  for (int kind = 0; kind < KINDS; kind++) free(model->records[kind].rows);
  if (model->folder >= 0) close(model->folder);
  free(model->path);
  free(model->text);
  pthread_mutex_destroy(&model->lock);
  free(model);
}

ST_PUBLIC int st_num_columns(const st_model *model) { return model ? (int)model->num_columns : 0; }

ST_PUBLIC const char *st_column_name(const st_model *model, int index) {
  return index >= 0 && index < st_num_columns(model) ? model->columns[index] : NULL;
}

ST_PUBLIC int64_t st_unseen(const st_model *model, int index) {
  int64_t count = 0;
  for (int64_t f = 0; model && f < model->num_categories; f++)
    if (model->categories[f].of.column == index)
      count += __atomic_load_n(&model->categories[f].unseen, __ATOMIC_RELAXED);
  return count;
}

ST_PUBLIC int st_num_labels(const st_model *model) {
  return model ? (int)model->program->outputs : 0;
}
