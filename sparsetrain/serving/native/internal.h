/* SPDX-License-Identifier: Apache-2.0
 *
 * What the three parts of the library share: an opened artefact, its encoder and its program. */
#ifndef SPARSETRAIN_INTERNAL_H
#define SPARSETRAIN_INTERNAL_H

#include <pthread.h>

#include "sparsetrain.h"

#define ST_FORMAT 4
#define ST_ALIGNMENT 64 /* of whatever a kernel reads */
#define ST_UNSEEN 1 /* the id of values without a row of their own */
#define ST_PUBLIC __attribute__((visibility("default")))

/* Records of the manifest. Each field has 8 bytes; `artefact.c` says how it is read. */
typedef struct {
  const char *level;
  char *flags;
  const char *made; /* versions of what made the folder */
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
  int64_t max_rows, index_bits; /* of one call; of an id */
  int64_t outputs; /* of a row */
  int64_t bags, apart; /* it takes the ends of rows; it takes the ids of each feature by themselves */
  int64_t width, flags; /* of a row's floats; which one is the first flag of a missing number, or 0 */
  int64_t is_encoded, nan_is_missing; /* of the data */
} st_program;

typedef struct {
  int64_t kind, feature; /* whose it is, or the first of those; -1: of all together */
} st_argument;
enum { ST_IN_DENSE, ST_IN_ROWS, ST_IN_OFFSETS, ST_IN_WEIGHTS };

typedef struct {
  const char *name, *kind;
} st_label;

typedef struct {
  const char *name;
  int64_t column, divide, modulo; /* of a request; derived: (column // divide) % modulo, 0: not */
} st_source;

typedef struct {
  st_source of;
  int64_t place, size; /* in a row's floats; of a vector, else 0 */
  int64_t form;        /* ST_PLAIN: as it is */
  double fill, center, scale;
} st_dense;
enum { ST_PLAIN, ST_LINEAR, ST_LOG };

typedef struct {
  st_source of;
  int64_t first, rows, is_bag;   /* of its table, in the storage */
  int64_t max_length, keep_last; /* of a bag in the data; 0: any */
  int64_t weights;               /* the column with the weight of each id; -1: none */
  int64_t is_single;             /* a program that takes features apart reads one id of each row */
  int64_t length;                /* or at most so many, the last ones; 0: any */
  int64_t like;                  /* and as many as of that other feature; -1: of none */
  int64_t known;                 /* which column of the hash tables has its values */
  int64_t begin, together;       /* the first and the number of features that share its inputs */
  int64_t start, count;          /* of its ids in a request */
  int64_t unseen;                /* values so far that have no row of their own */
} st_category;

typedef struct {
  const char *file;
  int64_t kind, bits, shape[4]; /* behind the last axis: 0 */
} st_array;

#define ST_RECORDS(type, name) \
  struct {                     \
    type *name;                \
    int64_t num_##name;        \
  };
struct st_model {
  union {
    struct { /* in the order of `artefact.c` */
      ST_RECORDS(st_cpu, cpu)
      ST_RECORDS(st_file, files)
      ST_RECORDS(st_program, program)
      ST_RECORDS(st_argument, inputs)
      ST_RECORDS(st_label, labels)
      ST_RECORDS(const char *, columns)
      ST_RECORDS(st_dense, dense)
      ST_RECORDS(st_category, categories)
      ST_RECORDS(st_array, params)
      ST_RECORDS(st_array, tables) /* of hashes, as `parsing/keys.py` describes them */
    };
    struct {
      int64_t *rows, count;
    } records[10];
  };
  char *path, *text; /* folder and manifest; names point into the latter */
  int folder;
  pthread_mutex_t lock; /* of the program and of what is of one request */
  struct st_state *state;
};

/* Values of all columns that are numbers, or texts, on their way to their ids. */
typedef struct {
  int64_t count, *values; /* or where each text begins, and the last one ends */
  uint8_t *missing;
  int32_t *known, *ids; /* columns of the hash tables; what was found there */
} st_batch;

/* Rows of a request as the program takes them. */
typedef struct {
  const st_column *const *columns; /* as the model numbers them */
  int64_t begin, end;
  int64_t ids, most_ids;           /* of all features; so many have room */
  float *dense, *weights;          /* (rows, width); (ids,) */
  void *located; /* for features together, (rows, features) or (ids,), of index_bits */
  int64_t *offsets; /* (features, stride): for those together, features * rows + 1; apart, ends of rows */
  int64_t stride, text_bytes;
  char *text;
  st_batch batches[2]; /* of numbers, of texts */
} st_inputs;

int st_fail(char *error, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The columns of a request, in the order of model->columns. */
int st_match(const st_model *model, int64_t rows, const st_column *given, int count,
             const st_column **matched, char *error);
/* All but the ids, whose values are in batches. */
int st_encode(st_model *model, st_inputs *inputs, char *error);
/* Puts the ids of the batches where the program reads them. */
void st_put_ids(const st_model *model, const st_inputs *inputs);
int64_t st_rounded(int64_t ids); /* so that what begins there is aligned */

int st_load_program(st_model *model, char *error);
void st_free_program(st_model *model);

#endif
