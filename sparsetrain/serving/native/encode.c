/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts raw values of a request to the program's inputs, except ids, which compiled kernels find.
 *
 * Ids and floats equal those of `Encoder.encode`; tests compare the two. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

#define EXACT 9007199254740992.0 /* 2^53: from here a double cannot represent every integer */

/* An error about a value; reports the row of its bag. */
static int refuse(char *error, const st_column *column, int64_t at, const char *reason) {
  int64_t row = at;
  if (column->bags)
    for (row = 0; column->bags[row + 1] <= at;) row++;
  return st_fail(error, ST_REQUEST, "row %lld, column %s: %s", (long long)row, column->name, reason);
}

static int rises(const int64_t *offsets, int64_t count) {
  int sorted = offsets[0] >= 0;
  for (int64_t i = 0; i < count; i++) sorted &= offsets[i] <= offsets[i + 1];
  return sorted;
}

static int check_column(int64_t rows, const st_column *column, char *error) {
  const char *reason = NULL;
  int64_t count = column->bags ? column->bags[rows] : rows;
  int is_text = column->type == ST_TEXT;
  if ((unsigned)column->type > ST_TEXT)
    return st_fail(error, ST_REQUEST, "column %s: type %d is unknown", column->name, column->type);
  if (column->bags && !rises(column->bags, rows))
    reason = "its offsets do not rise";
  else if (count && (!column->values || (is_text && !column->offsets)))
    reason = "it has no values";
  else if (count && is_text && !rises(column->offsets, count))
    reason = "its offsets do not rise";
  return reason ? st_fail(error, ST_REQUEST, "column %s: %s", column->name, reason) : ST_OK;
}

int st_match(const st_model *model, int64_t rows, const st_column *given, int count,
             const st_column **matched, char *error) {
  int code = ST_OK;
  for (int64_t i = 0; !code && i < model->num_columns; i++) {
    const char *name = model->columns[i];
    int at = i < count && !strcmp(given[i].name, name) ? (int)i : 0;
    while (at < count && strcmp(given[at].name, name)) at++;
    matched[i] = &given[at];
    code = at < count ? check_column(rows, matched[i], error)
                      : st_fail(error, ST_REQUEST, "column %s is missing", name);
  }
  return code;
}

/* Whether a value is missing: an empty text, NaN in a time, or any NaN if the encoder treats it so. */
static int is_missing(const st_model *model, const st_source *of, const st_column *column,
                      int64_t at) {
  int takes_nan = column->type == ST_DOUBLE && (model->program->nan_is_missing || of->divide);
  return (column->missing && column->missing[at]) ||
         (takes_nan && isnan(((const double *)column->values)[at])) ||
         (column->type == ST_TEXT && column->offsets[at] == column->offsets[at + 1]);
}

/* The value of an integer or a whole double, or the value derived from it. */
static int read_integer(const st_source *of, const st_column *column, int64_t at, int64_t *value,
                        char *error) {
  if (column->type == ST_INT64) {
    *value = ((const int64_t *)column->values)[at];
  } else {
    double number = ((const double *)column->values)[at];
    if (!(fabs(number) < EXACT) || number != trunc(number))
      return refuse(error, column, at,
                    isfinite(number) ? "it is not a whole number below 2**53; give it as text"
                                     : "the value is not finite; give a number, or none");
    *value = (int64_t)number;
  }
  if (of->divide) *value = *value / of->divide - (*value % of->divide < 0);
  if (of->modulo) *value = (*value % of->modulo + of->modulo) % of->modulo;
  return ST_OK;
}

static int read_number(const st_source *of, const st_column *column, int64_t at, double *value,
                       char *error) {
  int64_t whole = 0;
  if (column->type == ST_INT64 || of->divide) {
    int code = read_integer(of, column, at, &whole, error);
    return *value = (double)whole, code;
  }
  *value = ((const double *)column->values)[at];
  if (isfinite(*value)) return ST_OK;
  return refuse(error, column, at,
                isnan(*value) ? "the value is NaN; give a number, or say that it is missing"
                              : "the value is infinite; give a number, or say that it is missing");
}

/* The range of a row's values. */
typedef struct {
  int64_t begin, end;
} span;

/* A plain value is a bag with one value. With `may_be_none`, a missing value is an empty bag, since a
 * column with only missing bags may not look like a column of bags. */
static span bag_of(const st_model *model, const st_source *of, const st_column *column,
                   int64_t row, int may_be_none) {
  if (column->bags) return (span){column->bags[row], column->bags[row + 1]};
  return (span){row, row + !(may_be_none && is_missing(model, of, column, row))};
}

static int check_source(const st_source *of, const st_column *column, char *error) {
  if (!of->divide || (column->type != ST_TEXT && !column->bags)) return ST_OK;
  return st_fail(error, ST_REQUEST,
                 "column %s: %s is derived from it: give integers, of a time the seconds since 1970",
                 column->name, of->name);
}

static float transform(const st_dense *dense, double value) {
  if (dense->form == ST_PLAIN) return (float)value;
  if (dense->form == ST_LINEAR) return (float)((value - dense->center) / dense->scale);
  return (float)log((value < -2.0 ? -2.0 : value) + 3.0);
}

/* A column of numbers, or of vectors, which are not transformed; a missing vector is zeros. */
static int encode_dense(const st_model *model, const st_dense *dense, st_inputs *inputs,
                        char *error) {
  const st_column *column = inputs->columns[dense->of.column];
  float *to = inputs->dense + dense->place;
  int code = check_source(&dense->of, column, error), is_vector = dense->size > 0;
  if (!code && (column->type == ST_TEXT || (column->bags && !is_vector)))
    code = st_fail(error, ST_REQUEST, "column %s: it holds %s; give %s", column->name,
                   column->bags && !is_vector ? "lists" : "text",
                   is_vector ? "lists of numbers" : "numbers");
  for (int64_t row = inputs->begin; !code && row < inputs->end; row++, to += model->program->width) {
    span all = bag_of(model, &dense->of, column, row, is_vector);
    if (is_vector && all.end > all.begin && (!column->bags || all.end - all.begin != dense->size))
      return st_fail(error, ST_REQUEST, "row %lld, column %s: it is no list of %lld numbers",
                     (long long)row, column->name, (long long)dense->size);
    memset(to, 0, (size_t)dense->size * sizeof *to);
    for (int64_t at = all.begin; !code && at < all.end; at++) {
      double value = dense->fill;
      int missing = is_missing(model, &dense->of, column, at);
      if (!missing)
        code = read_number(&dense->of, column, at, &value, error);
      else if (dense->form == ST_PLAIN)
        code = refuse(error, column, at,
                      is_vector ? "a number of the vector is missing"
                                : "the value is missing in already encoded data");
      to[at - all.begin] = transform(dense, value);
      if (!code && !isfinite(to[at - all.begin]))
        code = refuse(error, column, at, "the value is too large for float32");
      if (model->program->flags && !is_vector) to[model->program->flags] = (float)missing;
    }
  }
  return code;
}

/* The part of a bag that the model reads. */
static span kept(const st_category *category, span all) {
  int64_t most = category->max_length ? category->max_length : INT64_MAX;
  if (all.end - all.begin > most && !category->keep_last) all.end = all.begin + most;
  if (category->length && category->length < most) most = category->length;
  if (all.end - all.begin > most) all.begin = all.end - most;
  return all;
}

static int read_plain(const st_category *category, const st_column *column, int64_t at,
                      int32_t *id, char *error) {
  char reason[96] = "the id is missing in already encoded data";
  if (column->type != ST_INT64)
    return st_fail(error, ST_REQUEST, "column %s: ids of encoded data are integers", column->name);
  int64_t number = ((const int64_t *)column->values)[at];
  if (!column->missing || !column->missing[at]) {
    if (number >= 0 && number < category->rows) return *id = (int32_t)number, ST_OK;
    snprintf(reason, sizeof reason, "id %lld is outside its table of %lld rows", (long long)number,
             (long long)category->rows);
  }
  return refuse(error, column, at, reason);
}

/* Appends values of a column to its batch. */
static int take(const st_model *model, const st_category *category, span taken, st_inputs *inputs,
                char *error) {
  const st_column *column = inputs->columns[category->of.column];
  int is_text = column->type == ST_TEXT, code = ST_OK;
  st_batch *batch = &inputs->batches[is_text];
  const int64_t *offsets = column->offsets;
  int64_t i = batch->count, end = is_text ? batch->values[i] : 0;
  if (is_text && taken.begin < taken.end)
    memcpy(inputs->text + end, (const char *)column->values + offsets[taken.begin],
           (size_t)(offsets[taken.end] - offsets[taken.begin]));
  for (int64_t at = taken.begin; !code && at < taken.end; at++, i++) {
    batch->known[i] = (int32_t)category->known;
    batch->missing[i] = is_text ? column->missing && column->missing[at] /* empty: see kernel */
                                : (uint8_t)is_missing(model, &category->of, column, at);
    if (model->program->is_encoded)
      code = read_plain(category, column, at, &batch->ids[i], error);
    else if (is_text)
      batch->values[i + 1] = end += offsets[at + 1] - offsets[at];
    else if (!batch->missing[i])
      code = read_integer(&category->of, column, at, &batch->values[i], error);
  }
  batch->count = i;
  return code;
}

/* Weights of the ids `bag`, the ids of a row that are kept. */
static int encode_weights(const st_category *category, const st_inputs *inputs, int64_t row,
                          span all, span bag, float *to, char *error) {
  static const st_source as_they_are = {0};
  const st_column *weights = category->weights < 0 ? NULL : inputs->columns[category->weights];
  if (!weights)
    for (; bag.begin < bag.end; bag.begin++) *to++ = 1;
  if (!weights) return ST_OK;
  const uint8_t *missing = weights->missing;
  span given = {row, row + !(missing && !weights->bags && missing[row])};
  if (weights->bags) given = (span){weights->bags[row], weights->bags[row + 1]};
  if (weights->type == ST_TEXT)
    return st_fail(error, ST_REQUEST, "column %s: give a list of numbers, one for each id",
                   weights->name);
  if (given.end - given.begin != all.end - all.begin)
    return st_fail(error, ST_REQUEST, "row %lld, column %s: %lld weights for %lld ids",
                   (long long)row, weights->name, (long long)(given.end - given.begin),
                   (long long)(all.end - all.begin));
  int code = ST_OK;
  for (int64_t at; !code && bag.begin < bag.end; bag.begin++) {
    double value = 0;
    at = given.begin + bag.begin - all.begin;
    code = missing && missing[at] ? refuse(error, weights, at, "a weight is missing")
                                  : read_number(&as_they_are, weights, at, &value, error);
    *to++ = (float)value;
  }
  return code;
}

static int encode_feature(const st_model *model, int64_t f, st_inputs *inputs, char *error) {
  st_category *category = &model->categories[f];
  const st_column *column = inputs->columns[category->of.column];
  int64_t rows = inputs->end - inputs->begin;
  int code = check_source(&category->of, column, error);
  if (!code && column->bags && !category->is_bag)
    code = st_fail(error, ST_REQUEST,
                   "column %s: it holds lists, which it did not in the training data", column->name);
  int64_t begin = category->begin, end = begin + category->together;
  int64_t *offsets = inputs->offsets + begin * inputs->stride;
  category->start = inputs->ids;
  category->count = model->program->bags ? 0 : rows;
  if (!code && !category->is_bag)
    code = take(model, category, (span){inputs->begin, inputs->end}, inputs, error);
  for (int64_t i = 0; !code && model->program->bags && i < rows; i++) {
    int64_t row = inputs->begin + i, start = category->start + category->count;
    span all = bag_of(model, &category->of, column, row, (int)category->is_bag);
    span bag = kept(category, all);
    category->count += bag.end - bag.begin;
    if (category->is_single && bag.end - bag.begin != 1)
      return st_fail(error, ST_REQUEST, "row %lld, column %s: it has %lld ids, the model reads one",
                     (long long)row, column->name, (long long)(bag.end - bag.begin));
    if (category->is_bag) code = take(model, category, bag, inputs, error);
    if (!code)
      code = encode_weights(category, inputs, row, all, bag, inputs->weights + start, error);
    if (model->program->apart)
      offsets[i] = category->count;
    else
      offsets[(f - begin) * rows + i] = start - model->categories[begin].start;
  }
  inputs->ids += category->count;
  if (f + 1 < end) return code;
  if (!code && model->program->bags && !model->program->apart)
    offsets[category->together * rows] = inputs->ids - model->categories[begin].start;
  if (end < model->num_categories) inputs->ids = st_rounded(inputs->ids);
  return code;
}

/* Whether row lengths equal those of the feature `like`. */
static int check_alike(const st_model *model, int64_t f, const st_inputs *inputs, char *error) {
  int64_t like = model->categories[f].like;
  const int64_t *own = inputs->offsets + f * inputs->stride;
  const int64_t *other = inputs->offsets + like * inputs->stride;
  for (int64_t row = inputs->begin; like >= 0 && row < inputs->end; row++)
    if (*own++ != *other++)
      return st_fail(error, ST_REQUEST, "row %lld, column %s: it has more or fewer ids than %s",
                     (long long)row, model->categories[f].of.name, model->categories[like].of.name);
  return ST_OK;
}

int st_encode(st_model *model, st_inputs *inputs, char *error) {
  int code = ST_OK;
  int64_t rows = inputs->end - inputs->begin;
  for (int64_t row = 0; !model->num_dense && row < rows; row++) inputs->dense[row] = 1;
  for (int64_t f = 0; !code && f < model->num_dense; f++)
    code = encode_dense(model, &model->dense[f], inputs, error);
  inputs->batches[1].values[0] = 0;
  for (int64_t f = 0; !code && f < model->num_categories; f++)
    code = encode_feature(model, f, inputs, error);
  for (int64_t f = 0; !code && model->program->apart && f < model->num_categories; f++)
    code = check_alike(model, f, inputs, error);
  return code;
}

void st_put_ids(const st_model *model, const st_inputs *inputs) {
  const int32_t *ids[] = {inputs->batches[0].ids, inputs->batches[1].ids};
  for (int64_t f = 0; f < model->num_categories; f++) {
    st_category *category = &model->categories[f];
    const int32_t **from = &ids[inputs->columns[category->of.column]->type == ST_TEXT];
    int64_t place = category->start, step = 1, unseen = 0;
    if (!model->program->bags) {
      place = model->categories[category->begin].start + f - category->begin;
      step = category->together;
    }
    for (int64_t left = category->count; left; left--, place += step) {
      int32_t id = *(*from)++;
      int64_t row = category->first + id;
      unseen += id == ST_UNSEEN;
      if (model->program->index_bits == 32)
        ((int32_t *)inputs->located)[place] = (int32_t)row;
      else
        ((int64_t *)inputs->located)[place] = row;
    }
    if (!model->program->is_encoded)
      __atomic_fetch_add(&category->unseen, unseen, __ATOMIC_RELAXED);
  }
}
