/* SPDX-License-Identifier: Apache-2.0
 *
 * What the three parts of the library share: an opened artefact, its encoder and its program. */
#ifndef SPARSETRAIN_INTERNAL_H
#define SPARSETRAIN_INTERNAL_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "sparsetrain.h"

#define ST_FORMAT 3
#define ST_PUBLIC __attribute__((visibility("default")))
#define ST_ALIGNMENT 64 /* of whatever a kernel reads */

typedef struct {
  const char *name;
  const uint8_t *data;
  size_t size;
  int mapped; /* or allocated */
} st_file;

/* Slots of the hash tables, of 16 bytes; the id of an empty one is 0. */
typedef struct {
  int64_t key;
  int32_t id, unused;
} st_number_slot;

typedef struct {
  int64_t at; /* in the pool: 4 bytes of length, then the text */
  uint32_t hash;
  int32_t id;
} st_text_slot;

/* Columns of features are numbers: first those of a request, then the derived ones. */
typedef struct {
  int64_t column;
  int linear;
  double center, scale;
} st_dense;

typedef struct {
  int64_t column, width;
} st_vector;

typedef struct {
  int64_t column, weights; /* that with the weight of each id; -1: none */
  int64_t first, rows;     /* of its table, in the storage */
  int is_bag, keep_last;
  int64_t max_length; /* of a bag in the data; 0: any */
  int is_single;      /* a program that takes features apart reads one id of each row */
  int64_t length;     /* or at most so many, the last ones; 0: any */
  int64_t like;       /* and as many as of that other feature; -1: of none */
  int hexadecimal;    /* text of 8 digits is so: 1, is decimal: 0, may be either: -1 */
  int wraps;          /* a number below 0 without a row is the unsigned one of its 32 bits */
  const st_number_slot *numbers; /* NULL: ids are used as they are */
  const st_text_slot *texts;
  const uint8_t *pool;
  int number_bits, text_bits;
} st_category;

typedef struct {
  const char *name;
  int64_t source, divide, modulo; /* modulo 0: none */
} st_derived;

typedef enum { ST_IN_DENSE, ST_IN_ROWS, ST_IN_OFFSETS, ST_IN_WEIGHTS, ST_INPUTS } st_input;

typedef struct {
  st_input kind;
  int feature; /* whose it is; -1: of all together */
} st_argument;

typedef struct {
  const uint8_t *data;
  int kind, bits, ndim;
  int64_t shape[4];
} st_param;

struct st_model {
  char *path, *text; /* folder and manifest; names point into the latter */
  int folder;
  st_file *files;
  st_dense *dense;
  st_vector *vectors; /* dense inputs behind the others and their flags */
  st_category *categories;
  st_derived *derived;
  st_param *params;
  const char **columns; /* that a request must have */
  int *is_binary;       /* of each label, or element of a vector */
  int num_files, num_dense, num_vectors, num_categories, num_derived, num_params, num_columns, num_labels;
  int encoded, flags, nan_is_missing, wraps, index_bits;
  double fill;
  const char *function;
  int64_t max_rows; /* of one call of the program */
  st_argument *inputs;
  int num_inputs, wants[ST_INPUTS];
  int apart; /* the program takes the ids of each feature by themselves */
  pthread_mutex_t lock; /* of the program and the scratch memory */
  struct st_program *program;
};

/* Rows of a request as the program takes them. */
typedef struct {
  int64_t rows, ids; /* ids: written so far */
  int64_t *starts;   /* (features,): the first id of each */
  float *dense;      /* (rows, width) */
  int64_t width;
  void *located; /* (rows, features) or (ids,), of index_bits */
  int64_t *offsets; /* (features * rows + 1,); taken apart, (features, stride): ends of rows */
  int64_t stride;
  float *weights;
} st_inputs;

int st_fail(char *error, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
uint32_t st_crc32(const uint8_t *data, size_t size);
const st_file *st_find_file(const st_model *model, const char *name);

/* The columns of a request, in the order of model->columns, with derived ones behind. */
int st_match(const st_model *model, int64_t rows, const st_column *given, int count,
             st_column **matched, char *error);
/* Ids of a feature in some rows: how much memory `st_encode` writes. */
int64_t st_count_ids(const st_model *model, const st_category *category, const st_column *columns,
                     int64_t begin, int64_t end);
int st_encode(const st_model *model, const st_column *columns, int64_t begin, int64_t end,
              st_inputs *inputs, char *error);

int st_load_program(st_model *model, char *error);
int st_run_program(st_model *model, const st_column *columns, int64_t begin, int64_t end,
                   float *predictions, char *error);
void st_free_program(struct st_program *program);

#endif
