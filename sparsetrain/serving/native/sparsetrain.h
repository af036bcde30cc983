/* SPDX-License-Identifier: Apache-2.0
 *
 * C interface of an exported model: raw values in, predictions out, without Python or a compiler.
 *
 * `sparsetrain export RUN --out FOLDER` puts this header, the library that it declares and TVM's
 * runtime into FOLDER:
 *
 *     gcc client.c -I FOLDER FOLDER/libsparsetrain.so -Wl,-rpath,FOLDER -o client
 *
 * Functions return ST_OK, or a code and a one-line message in `error`, which has ST_ERROR_SIZE bytes
 * or is NULL. A required pointer that is NULL is an error; memory behind other pointers is trusted.
 */
#ifndef SPARSETRAIN_H
#define SPARSETRAIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ST_ERROR_SIZE 512

enum {
  ST_OK = 0,
  ST_ARTEFACT = 1,  /* damaged, for a different version or CPU, or writable by other users */
  ST_REQUEST = 2,   /* an unsupported column or value; the message names it */
  ST_NUMERICAL = 3, /* a score is not finite */
  ST_SYSTEM = 4     /* out of memory, or TVM's runtime failed */
};

typedef enum {
  ST_INT64 = 0, /* int64_t; a 32-bit hash is a number from 0 to 2^32-1 */
  ST_DOUBLE = 1,
  ST_TEXT = 2 /* UTF-8 */
} st_type;

/* One column of a request. */
typedef struct {
  const char *name; /* as in the training data */
  st_type type;
  const void *values;     /* int64_t, double, or the bytes of all texts */
  const int64_t *offsets; /* (n + 1): where each text begins, and the last ends; else NULL */
  const uint8_t *missing; /* (n): 1 for a missing value; NULL if none is missing */
  const int64_t *bags;    /* (rows + 1): each row's first value, then n, for lists; else NULL */
} st_column;

typedef struct st_model st_model;

/* Checks every byte and the permissions of a folder, maps its tables and loads its program; after an
 * error `*model` is NULL. Kernels run on one thread unless TVM_NUM_THREADS sets a number. Replace a
 * folder only as a whole: truncating a file in place crashes the process (SIGBUS). */
int st_open(const char *folder, st_model **model, char *error);

/* Number of columns that `st_predict` reads, and of predictions per row; the name of a column out of
 * range is NULL. */
int st_num_columns(const st_model *model);
const char *st_column_name(const st_model *model, int index);
int st_num_labels(const st_model *model);

/* Number of a column's values so far without a row: rare, or never seen in training. */
int64_t st_unseen(const st_model *model, int index);

/* Writes predictions (rows, labels) for the rows of some columns: probabilities of binary labels,
 * values of real labels. Columns may be in any order; unknown columns are ignored. Threads may share
 * a model and take turns. */
int st_predict(st_model *model, int64_t rows, const st_column *columns, int num_columns,
               float *predictions, char *error);

void st_close(st_model *model);

#ifdef __cplusplus
}
#endif
#endif
