/* SPDX-License-Identifier: Apache-2.0
 *
 * C interface of an exported model: raw values in, predictions out, without Python or a compiler.
 *
 * `sparsetrain export RUN --out FOLDER` puts this header, the library that it declares and TVM's
 * runtime into FOLDER:
 *
 *     gcc client.c -I FOLDER FOLDER/libsparsetrain.so -Wl,-rpath,FOLDER -o client
 *
 * Functions return ST_OK, or a code and a message of one line in `error`, ST_ERROR_SIZE bytes or
 * NULL. A pointer that is NULL where one is needed is such an error; what others point to is trusted.
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
  ST_ARTEFACT = 1,  /* damaged, of another version or CPU, or open to other users */
  ST_REQUEST = 2,   /* a column or a value that the model does not take; the message names it */
  ST_NUMERICAL = 3, /* a score that is not finite */
  ST_SYSTEM = 4     /* memory, or TVM's runtime */
};

typedef enum {
  ST_INT64 = 0, /* int64_t; a 32-bit hash is the number 0..2^32-1 that it spells */
  ST_DOUBLE = 1,
  ST_TEXT = 2 /* UTF-8 */
} st_type;

/* One column of a request. */
typedef struct {
  const char *name; /* as in the training data */
  st_type type;
  const void *values;     /* int64_t, double, or the bytes of all texts */
  const int64_t *offsets; /* of n texts: where each begins, and the last ends (n + 1); else NULL */
  const uint8_t *missing; /* (n): 1 for a value that is missing; NULL if none is */
  const int64_t *bags;    /* of lists: the first value of each row, and n (rows + 1); else NULL */
} st_column;

typedef struct st_model st_model;

/* Checks every byte of a folder and who may write it, maps its tables and loads its program; after
 * an error `*model` is NULL. Kernels run on one thread unless TVM_NUM_THREADS says otherwise. Replace
 * a folder as a whole: a file that is made shorter in its place ends the process (SIGBUS). */
int st_open(const char *folder, st_model **model, char *error);

/* Columns that `st_predict` wants, and predictions of each row; the name is NULL of a column that is
 * not there. */
int st_num_columns(const st_model *model);
const char *st_column_name(const st_model *model, int index);
int st_num_labels(const st_model *model);

/* Values of a column so far that the encoder had no row for: they were rare, or never seen. */
int64_t st_unseen(const st_model *model, int index);

/* Predictions (rows, labels) of the rows of some columns: probabilities of binary labels, values of
 * real ones. Columns may come in any order; those that the model does not know are not read.
 * Threads may share a model; they take turns. */
int st_predict(st_model *model, int64_t rows, const st_column *columns, int num_columns,
               float *predictions, char *error);

void st_close(st_model *model);

#ifdef __cplusplus
}
#endif
#endif
