/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the three parts of the library: an opened artefact, its encoder and its program. */
#ifndef SPARSETRAIN_INTERNAL_H
#define SPARSETRAIN_INTERNAL_H

#include <pthread.h>

#include "sparsetrain.h"

#define ST_FORMAT 4
#define ST_ALIGNMENT 64 /* of all memory that kernels read */
#define ST_UNSEEN 1 /* id of values without their own row */
#define ST_PUBLIC __attribute__((visibility("default")))

/* Records of the manifest. Each field has 8 bytes; `artefact.c` defines their format. */
typedef struct {
  const char *level;
  char *flags;
  const char *made; /* versions of the packages that wrote the folder */
} st_cpu;

typedef struct {
  const char *name;
  int64_t size;
  const char *crc;
  uint64_t adler;
  int64_t is_mapped;
  const uint8_t *data;
} st_file;

typedef struct {
  const char *function;
  int64_t max_rows, index_bits; /* most rows of a call; bits of an id */
  int64_t outputs; /* results per row */
  int64_t bags, apart; /* takes ends of rows; takes features separately */
  int64_t width, flags; /* floats per row; index of the first missing flag, or 0 */
  int64_t is_encoded, nan_is_missing; /* properties of the data */
} st_program;

typedef struct {
  int64_t kind, feature; /* its feature, or the first of a group; -1: all */
} st_argument;
enum { ST_IN_DENSE, ST_IN_ROWS, ST_IN_OFFSETS, ST_IN_WEIGHTS };

typedef struct {
  const char *name, *kind;
} st_label;

typedef struct {
  const char *name;
  int64_t column, divide, modulo; /* unless divide is 0: (column // divide) % modulo */
} st_source;

typedef struct {
  st_source of;
  int64_t place, size; /* index in a row's floats; length of a vector, else 0 */
  int64_t form;        /* ST_PLAIN: unchanged */
  double fill, center, scale;
} st_dense;
enum { ST_PLAIN, ST_LINEAR, ST_LOG };

typedef struct {
  st_source of;
  int64_t first, rows, is_bag;   /* rows of its table in the storage */
  int64_t max_length, keep_last; /* limit of a bag in the data; 0: none */
  int64_t weights;               /* column with each id's weight; -1: none */
  int64_t is_single;             /* reads one id per row, if features are taken separately */
  int64_t length;                /* else at most this many ids, the last ones; 0: any */
  int64_t like;                  /* feature with equal row lengths; -1: none */
  int64_t known;                 /* its column in the hash tables */
  int64_t begin, together;       /* first feature and number of features that share its inputs */
  int64_t start, count;          /* range of its ids in a request */
  int64_t unseen;                /* values so far without their own row */
} st_category;

typedef struct {
  const char *file;
  int64_t kind, bits, shape[4]; /* 0 after the last axis */
} st_array;

#define ST_RECORDS(type, name) \
  struct {                     \
    type *name;                \
    int64_t num_##name;        \
  };
struct st_model {
  union {
    struct { /* in the order used by `artefact.c` */
      ST_RECORDS(st_cpu, cpu)
      ST_RECORDS(st_file, files)
      ST_RECORDS(st_program, program)
      ST_RECORDS(st_argument, inputs)
      ST_RECORDS(st_label, labels)
      ST_RECORDS(const char *, columns)
      ST_RECORDS(st_dense, dense)
      ST_RECORDS(st_category, categories)
      ST_RECORDS(st_array, params)
      ST_RECORDS(st_array, tables) /* hash tables, see `parsing/keys.py` */
    };
    struct {
      int64_t *rows, count;
    } records[10];
  };
  char *path, *text; /* folder and manifest; names point into the manifest */
  int folder;
  pthread_mutex_t lock; /* protects the program and the state of a request */
  struct st_state *state;
};

/* All values to look up that are numbers, or all that are texts. */
typedef struct {
  int64_t count, *values; /* for texts: where each begins, and the last ends */
  uint8_t *missing;
  int32_t *known, *ids; /* column of each value in the hash tables; ids found */
} st_batch;

/* Rows of a request, in the program's layout. */
typedef struct {
  const st_column *const *columns; /* in the model's order */
  int64_t begin, end;
  int64_t ids, most_ids;           /* ids of all features; capacity */
  float *dense, *weights;          /* (rows, width); (ids,) */
  void *located; /* rows of the storage, (rows, features) or (ids,), in index_bits */
  int64_t *offsets; /* (features, stride): features * rows + 1 for a group; ends of rows if separate */
  int64_t stride, text_bytes;
  char *text;
  st_batch batches[2]; /* of numbers, of texts */
} st_inputs;

int st_fail(char *error, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The columns of a request, in the order of model->columns. */
int st_match(const st_model *model, int64_t rows, const st_column *given, int count,
             const st_column **matched, char *error);
/* Computes everything except ids; their values go to batches. */
int st_encode(st_model *model, st_inputs *inputs, char *error);
/* Copies the batches' ids to the program's inputs. */
void st_put_ids(const st_model *model, const st_inputs *inputs);
int64_t st_rounded(int64_t ids); /* rounded up, so that the next array is aligned */

int st_load_program(st_model *model, char *error);
void st_free_program(st_model *model);

#endif
