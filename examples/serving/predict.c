/* SPDX-License-Identifier: Apache-2.0
 *
 * Predictions for the rows of a text file, from C. Fields are separated by
 * tabs, the header line has their names, and an empty field is a missing
 * value. Build it beside an exported folder:
 *
 *     gcc -O2 predict.c -I FOLDER FOLDER/libsparsetrain.so \
 *         -Wl,-rpath,$PWD/FOLDER -o predict
 *
 *     # a line of predictions for each row
 *     ./predict FOLDER rows.tsv
 *     # the time of 1,000 calls with one row, and with all rows
 *     ./predict FOLDER rows.tsv 1000
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sparsetrain.h"

#define MAX_COLUMNS 1000

static void *allocate(size_t bytes) {
  void *memory = calloc(1, bytes + 1);
  if (!memory) exit(6);
  return memory;
}

static char *read_text(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) {
    perror(path);
    exit(3);
  }
  long size = ftell(file);
  char *text = allocate((size_t)size);
  rewind(file);
  if (fread(text, 1, (size_t)size, file) != (size_t)size) exit(3);
  fclose(file);
  return text;
}

/* A column of integers if all fields are, else of doubles, else of text. */
static st_column as_column(const char *name, char **fields, int64_t rows) {
  int64_t *integers = allocate((size_t)rows * 8);
  int64_t *offsets = allocate((size_t)(rows + 1) * 8);
  double *doubles = allocate((size_t)rows * 8);
  uint8_t *missing = allocate((size_t)rows);
  int whole = 1, numeric = 1;
  for (int64_t row = 0; row < rows; row++) {
    char *end, *field = fields[row];
    missing[row] = !*field;
    offsets[row + 1] = offsets[row] + (int64_t)strlen(field);
    integers[row] = strtoll(field, &end, 10);
    whole &= !*end;
    doubles[row] = strtod(field, &end);
    numeric &= !*end;
  }
  if (whole)
    return (st_column){name, ST_INT64, integers, NULL, missing, NULL};
  if (numeric)
    return (st_column){name, ST_DOUBLE, doubles, NULL, missing, NULL};
  char *bytes = allocate((size_t)offsets[rows]);
  for (int64_t row = 0; row < rows; row++)
    memcpy(bytes + offsets[row], fields[row], strlen(fields[row]));
  return (st_column){name, ST_TEXT, bytes, offsets, missing, NULL};
}

static int read_columns(char *text, st_column *columns, int64_t *rows) {
  char *names[MAX_COLUMNS], *header = strsep(&text, "\n");
  int count = 0;
  while (header && count < MAX_COLUMNS)
    names[count++] = strsep(&header, "\t");
  *rows = 0;
  for (char *at = text; at && *at; at++) *rows += *at == '\n';
  char **fields = allocate((size_t)*rows * (size_t)count * sizeof *fields);
  for (int64_t row = 0; row < *rows; row++) {
    char *line = strsep(&text, "\n");
    for (int c = 0; c < count; c++) {
      char *field = strsep(&line, "\t");
      fields[c * *rows + row] = field ? field : "";
    }
  }
  for (int c = 0; c < count; c++)
    columns[c] = as_column(names[c], fields + c * *rows, *rows);
  return count;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static int by_size(const void *a, const void *b) {
  double first = *(const double *)a, second = *(const double *)b;
  return (first > second) - (first < second);
}

/* Time calls of `rows` rows; calls of one row go through `all` rows. */
static void measure(st_model *model, const st_column *columns, int count,
                    int64_t all, int64_t rows, int calls,
                    float *predictions) {
  double *took = allocate((size_t)calls * sizeof *took);
  st_column *part = allocate((size_t)count * sizeof *part);
  char error[ST_ERROR_SIZE];
  for (int call = -20; call < calls; call++) {
    int64_t first = rows == 1 ? (call + 20) % all : 0;
    for (int c = 0; c < count; c++) {
      part[c] = columns[c];
      part[c].missing += first;
      if (part[c].type == ST_TEXT)
        part[c].offsets += first;
      else
        part[c].values = (const char *)part[c].values + 8 * first;
    }
    double begin = now();
    if (st_predict(model, rows, part, count, predictions, error)) exit(3);
    if (call >= 0) took[call] = now() - begin;
  }
  qsort(took, (size_t)calls, sizeof *took, by_size);
  printf("%lld rows: p50 %.4f ms, p99 %.4f ms\n", (long long)rows,
         took[calls / 2], took[calls * 99 / 100]);
}

int main(int argc, char **argv) {
  char error[ST_ERROR_SIZE];
  st_model *model;
  if (argc < 3) {
    fprintf(stderr, "usage: %s FOLDER ROWS [CALLS]\n", argv[0]);
    return 2;
  }
  int code = st_open(argv[1], &model, error);
  if (code) {
    fprintf(stderr, "%s\n", error);
    return code;
  }
  st_column columns[MAX_COLUMNS];
  int64_t rows;
  int count = read_columns(read_text(argv[2]), columns, &rows);
  int labels = st_num_labels(model);
  size_t outputs = (size_t)rows * (size_t)labels;
  float *predictions = allocate(outputs * sizeof *predictions);
  code = st_predict(model, rows, columns, count, predictions, error);
  if (code) fprintf(stderr, "%s\n", error);
  if (!code && argc > 3) {
    measure(model, columns, count, rows, 1, atoi(argv[3]), predictions);
    measure(model, columns, count, rows, rows, atoi(argv[3]), predictions);
  } else if (!code) {
    for (int64_t at = 0; at < rows * labels; at++) {
      char end = at % labels == labels - 1 ? '\n' : '\t';
      printf("%.9g%c", predictions[at], end);
    }
  }
  st_close(model);
  return code;
}
