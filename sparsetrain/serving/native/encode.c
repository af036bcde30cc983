/* SPDX-License-Identifier: Apache-2.0
 *
 * Raw values of a request as the program's inputs: the encoder's lookups and transformations.
 *
 * It gives the very ids and floats that `Encoder.encode` gives; tests compare the two. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define EXACT 9007199254740992.0 /* 2^53: from here a double no longer tells neighbours apart */
#define MISSING 0
#define UNSEEN 1
#define AT_ONCE 16 /* values whose slots are fetched together */
#define GOLDEN 0x9E3779B97F4A7C15u

static const char *name_of(const st_model *model, int64_t column) {
  return column < model->num_columns ? model->columns[column]
                                     : model->derived[column - model->num_columns].name;
}

/* An error about a value, whose row is that of its bag. */
static int refuse(char *error, const st_column *column, const char *name, int64_t at,
                  const char *reason) {
  int64_t row = at;
  if (column->bags)
    for (row = 0; column->bags[row + 1] <= at;) row++;
  return st_fail(error, ST_REQUEST, "row %lld, column %s: %s", (long long)row, name, reason);
}

static int check_offsets(const int64_t *offsets, int64_t count, const char *name, char *error) {
  int sorted = offsets[0] >= 0;
  for (int64_t i = 0; i < count; i++) sorted &= offsets[i] <= offsets[i + 1];
  return sorted ? ST_OK
                : st_fail(error, ST_REQUEST, "column %s: its offsets do not rise", name);
}

static int check_column(int64_t rows, const st_column *column, char *error) {
  int code = column->bags ? check_offsets(column->bags, rows, column->name, error) : ST_OK;
  int64_t count = column->bags ? column->bags[code ? 0 : rows] : rows;
  if (!code && (unsigned)column->type > ST_TEXT)
    code = st_fail(error, ST_REQUEST, "column %s: type %d is unknown", column->name, column->type);
  if (!code && count && (!column->values || (column->type == ST_TEXT && !column->offsets)))
    code = st_fail(error, ST_REQUEST, "column %s: it has no values", column->name);
  if (!code && count && column->type == ST_TEXT)
    code = check_offsets(column->offsets, count, column->name, error);
  return code;
}

static int is_missing(const st_column *column, int64_t at) {
  return column->missing && column->missing[at];
}

/* The value of a column of integers, or of doubles that are whole numbers. */
static int read_integer(const st_column *column, const char *name, int64_t at, int64_t *value,
                        char *error) {
  if (column->type == ST_INT64) {
    *value = ((const int64_t *)column->values)[at];
    return ST_OK;
  }
  double number = ((const double *)column->values)[at];
  if (!isfinite(number))
    return refuse(error, column, name, at, "the value is not finite; give a number, or none");
  if (number != trunc(number) || fabs(number) >= EXACT)
    return refuse(error, column, name, at, "it is not a whole number below 2**53; give it as text");
  *value = (int64_t)number;
  return ST_OK;
}

/* Whether a value is missing: an empty text is, and NaN where the encoder says so. */
static int counts_as_missing(const st_model *model, const st_column *column, int64_t at) {
  if (is_missing(column, at)) return 1;
  if (column->type == ST_TEXT) return column->offsets[at] == column->offsets[at + 1];
  return model->nan_is_missing && column->type == ST_DOUBLE &&
         isnan(((const double *)column->values)[at]);
}

/* (source // divide) % modulo, rounded down. */
static int derive(const st_derived *derived, int64_t rows, int64_t *values, uint8_t *missing,
                  const st_column *source, st_column *made, char *error) {
  if (source->type == ST_TEXT || source->bags)
    return st_fail(error, ST_REQUEST,
                   "column %s: %s is derived from it: give integers, of a time the seconds since "
                   "1970",
                   source->name, derived->name);
  for (int64_t row = 0; row < rows; row++) {
    int64_t value = 0;
    missing[row] = (uint8_t)(is_missing(source, row) ||
                             (source->type == ST_DOUBLE && isnan(((double *)source->values)[row])));
    int code = missing[row] ? 0 : read_integer(source, source->name, row, &value, error);
    if (code) return code;
    value = value / derived->divide - (value % derived->divide < 0);
    if (derived->modulo) value = (value % derived->modulo + derived->modulo) % derived->modulo;
    values[row] = missing[row] ? 0 : value;
  }
  *made = (st_column){derived->name, ST_INT64, values, NULL, missing, NULL};
  return ST_OK;
}

int st_match(const st_model *model, int64_t rows, const st_column *given, int count,
             st_column **matched, char *error) {
  size_t columns = (size_t)(model->num_columns + model->num_derived) * sizeof(st_column);
  size_t derived = (size_t)rows * (size_t)model->num_derived;
  st_column *found = *matched = malloc(columns + derived * 9);
  if (!found) return st_fail(error, ST_SYSTEM, "no memory for a request of %lld rows",
                             (long long)rows);
  for (int i = 0; i < model->num_columns; i++) {
    const char *name = model->columns[i];
    int at = i < count && !strcmp(given[i].name, name) ? i : 0;
    while (at < count && strcmp(given[at].name, name)) at++;
    if (at == count) return st_fail(error, ST_REQUEST, "column %s is missing", name);
    int code = check_column(rows, &given[at], error);
    if (code) return code;
    found[i] = given[at];
  }
  int64_t *values = (int64_t *)((char *)found + columns);
  uint8_t *missing = (uint8_t *)(values + derived);
  for (int i = 0; i < model->num_derived; i++, values += rows, missing += rows) {
    const st_derived *rule = &model->derived[i];
    int code = derive(rule, rows, values, missing, &found[rule->source],
                      &found[model->num_columns + i], error);
    if (code) return code;
  }
  return ST_OK;
}

/* Dense features. */

static int read_number(const st_column *column, const char *name, int64_t at, double *value,
                       char *error) {
  if (column->type == ST_INT64)
    *value = (double)((const int64_t *)column->values)[at];
  else
    *value = ((const double *)column->values)[at];
  if (isfinite(*value)) return ST_OK;
  return refuse(error, column, name, at,
                isnan(*value) ? "the value is NaN; give a number, or say that it is missing"
                              : "the value is infinite; give a number, or say that it is missing");
}

static float transform(const st_model *model, const st_dense *dense, double value, int missing) {
  if (model->encoded) return (float)value;
  if (dense->linear) return (float)(((missing ? dense->center : value) - dense->center) /
                                    dense->scale);
  double filled = missing ? model->fill : value;
  return (float)log((filled < -2.0 ? -2.0 : filled) + 3.0);
}

static int encode_dense(const st_model *model, int feature, const st_column *column, int64_t begin,
                        int64_t end, st_inputs *inputs, char *error) {
  const st_dense *dense = &model->dense[feature];
  const char *name = name_of(model, dense->column);
  if (column->type == ST_TEXT || column->bags)
    return st_fail(error, ST_REQUEST, "column %s: it holds %s; give numbers", name,
                   column->bags ? "lists" : "text");
  for (int64_t row = begin; row < end; row++) {
    double value = 0;
    int missing = counts_as_missing(model, column, row);
    int code = missing ? ST_OK : read_number(column, name, row, &value, error);
    if (code) return code;
    if (missing && model->encoded)
      return refuse(error, column, name, row, "the value is missing in already encoded data");
    float *to = inputs->dense + (row - begin) * inputs->width;
    to[feature] = transform(model, dense, value, missing);
    if (!isfinite(to[feature]))
      return refuse(error, column, name, row, "the value is too large for float32");
    if (model->flags) to[model->num_dense + feature] = (float)missing;
  }
  return ST_OK;
}

/* Categories. */

/* Of a lower-case hex digit its value and 1, of all else 0. */
static const uint8_t digits[256] = {
    ['0'] = 1, ['1'] = 2,  ['2'] = 3,  ['3'] = 4,  ['4'] = 5,  ['5'] = 6,  ['6'] = 7,  ['7'] = 8,
    ['8'] = 9, ['9'] = 10, ['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16};

/* The number that exactly 8 lower-case hex digits spell; -1 for any other text. */
static int64_t hex_number(const char *text, int64_t length) {
  if (length != 8) return -1;
  int64_t number = 0, valid = 1;
  for (int i = 0; i < 8; i++) { /* no branches: which digits they are is random */
    uint8_t digit = digits[(uint8_t)text[i]];
    valid &= digit != 0;
    number = number << 4 | (uint8_t)(digit - 1);
  }
  return valid ? number : -1;
}

/* Whether a text is a whole number as integers, or a boolean, are written; uint64 by its bits. */
static int whole_number(const char *text, int64_t length, int64_t *number) {
  static const char *const booleans[] = {"false", "False", "FALSE", "true", "True", "TRUE"};
  for (int i = 0; i < 6; i++)
    if ((int64_t)strlen(booleans[i]) == length && !memcmp(text, booleans[i], (size_t)length))
      return *number = i >= 3, 1;
  int minus = length > 1 && *text == '-';
  if (length < 1 || length > 20 || (text[minus] == '0' && length > 1)) return 0;
  uint64_t value = 0;
  for (int64_t i = minus; i < length; i++) {
    if (text[i] < '0' || text[i] > '9' || __builtin_mul_overflow(value, 10, &value) ||
        __builtin_add_overflow(value, (uint64_t)(text[i] - '0'), &value))
      return 0;
  }
  if (minus && value > (uint64_t)INT64_MAX + 1) return 0;
  *number = (int64_t)(minus ? 0 - value : value);
  return 1;
}

/* A value on its way to its id: an id already, or a key whose slot is on its way to the cache. */
typedef struct {
  int64_t key; /* or the id, or the length of the text */
  const char *text;
  uint64_t slot;
  uint32_t hash;
  int64_t other; /* what else a number may be; -1: nothing */
  enum { ID, NUMBER, A_TEXT } kind;
} probe;

static void probe_number(const st_category *category, int64_t key, probe *made) {
  uint64_t slot = (uint64_t)key * GOLDEN >> (64 - category->number_bits);
  __builtin_prefetch(&category->numbers[slot]);
  int64_t other = category->wraps && key < 0 && key >= INT32_MIN ? key + ((int64_t)1 << 32) : -1;
  *made = (probe){key, NULL, slot, 0, other, NUMBER};
}

static void probe_text(const st_category *category, const char *text, int64_t length, probe *made) {
  int64_t hexadecimal = hex_number(text, length), decimal = 0;
  int is_decimal = !(hexadecimal >= 0 && category->hexadecimal == 1) &&
                   whole_number(text, length, &decimal);
  if (is_decimal) {
    probe_number(category, decimal, made);
    if (category->hexadecimal < 0 && hexadecimal >= 0) made->other = hexadecimal;
  } else if (hexadecimal >= 0) {
    probe_number(category, hexadecimal, made);
  } else {
    uint32_t hash = st_crc32((const uint8_t *)text, (size_t)length);
    uint64_t slot = (uint64_t)hash * GOLDEN >> (64 - category->text_bits);
    __builtin_prefetch(&category->texts[slot]);
    *made = (probe){length, text, slot, hash, -1, A_TEXT};
  }
}

static int probe_plain(const st_category *category, const st_column *column, const char *name,
                       int64_t at, probe *made, char *error) {
  if (is_missing(column, at))
    return refuse(error, column, name, at, "the id is missing in already encoded data");
  if (column->type != ST_INT64)
    return st_fail(error, ST_REQUEST, "column %s: ids of encoded data are integers", name);
  *made = (probe){((const int64_t *)column->values)[at], NULL, 0, 0, -1, ID};
  if (made->key >= 0 && made->key < category->rows) return ST_OK;
  char reason[96];
  snprintf(reason, sizeof reason, "id %lld is outside its table of %lld rows",
           (long long)made->key, (long long)category->rows);
  return refuse(error, column, name, at, reason);
}

static int probe_value(const st_model *model, const st_category *category, const st_column *column,
                       const char *name, int64_t at, probe *made, char *error) {
  if (!category->numbers) return probe_plain(category, column, name, at, made, error);
  if (counts_as_missing(model, column, at)) {
    *made = (probe){MISSING, NULL, 0, 0, -1, ID};
  } else if (column->type == ST_TEXT) {
    const int64_t *offsets = column->offsets + at;
    probe_text(category, (const char *)column->values + offsets[0], offsets[1] - offsets[0], made);
  } else {
    int64_t key = 0;
    int code = read_integer(column, name, at, &key, error);
    if (code) return code;
    probe_number(category, key, made);
  }
  return ST_OK;
}

static int64_t find_number(const st_category *category, const probe *sought) {
  uint64_t mask = ((uint64_t)1 << category->number_bits) - 1;
  for (uint64_t slot = sought->slot;; slot = (slot + 1) & mask) {
    const st_number_slot *found = &category->numbers[slot];
    if (!found->id) return UNSEEN;
    if (found->key == sought->key) return found->id;
  }
}

static int64_t find_text(const st_category *category, const probe *sought) {
  uint64_t mask = ((uint64_t)1 << category->text_bits) - 1;
  for (uint64_t slot = sought->slot;; slot = (slot + 1) & mask) {
    const st_text_slot *found = &category->texts[slot];
    if (!found->id) return UNSEEN;
    const uint8_t *known = category->pool + found->at;
    uint32_t size;
    memcpy(&size, known, 4);
    if (found->hash == sought->hash && size == sought->key && !memcmp(known + 4, sought->text, size))
      return found->id;
  }
}

static void put(const st_model *model, void *located, int64_t place, int64_t row) {
  if (model->index_bits == 32)
    ((int32_t *)located)[place] = (int32_t)row;
  else
    ((int64_t *)located)[place] = row;
}

/* Rows of the values `begin` to `end` of a column, at every `stride`-th place from `place`. */
static int encode_values(const st_model *model, const st_category *category,
                         const st_column *column, int64_t begin, int64_t end, void *located,
                         int64_t place, int64_t stride, char *error) {
  const char *name = name_of(model, category->column);
  probe probes[AT_ONCE];
  for (int64_t first = begin; first < end; first += AT_ONCE) {
    int count = (int)(end - first < AT_ONCE ? end - first : AT_ONCE);
    for (int i = 0; i < count; i++) {
      int code = probe_value(model, category, column, name, first + i, &probes[i], error);
      if (code) return code;
    }
    for (int i = 0; i < count; i++, place += stride) {
      const probe *sought = &probes[i];
      int64_t id = sought->kind == ID       ? sought->key
                   : sought->kind == NUMBER ? find_number(category, sought)
                                            : find_text(category, sought);
      if (id == UNSEEN && sought->other >= 0) {
        probe other;
        probe_number(category, sought->other, &other);
        id = find_number(category, &other);
      }
      put(model, located, place, category->first + id);
    }
  }
  return ST_OK;
}

static int check_category(const st_category *category, const st_column *column, const char *name,
                          char *error) {
  if (column->bags && !category->is_bag)
    return st_fail(error, ST_REQUEST,
                   "column %s: it holds lists, which it did not in the training data", name);
  return ST_OK;
}

static int encode_ids(const st_model *model, int feature, const st_column *column, int64_t begin,
                      int64_t end, st_inputs *inputs, char *error) {
  const st_category *category = &model->categories[feature];
  int code = check_category(category, column, name_of(model, category->column), error);
  return code ? code
              : encode_values(model, category, column, begin, end, inputs->located, feature,
                              model->num_categories, error);
}

/* Which values are those of a bag. */
typedef struct {
  int64_t begin, end;
} span;

/* A plain value is a bag of one; a missing one is an empty bag, since a column of which all bags
 * are missing may not show that it holds any. */
static span bag_of(const st_column *column, int64_t row, int missing) {
  return column->bags ? (span){column->bags[row], column->bags[row + 1]}
                      : (span){row, row + !missing};
}

static span ids_of(const st_model *model, const st_category *category, const st_column *column,
                   int64_t row) {
  return bag_of(column, row, category->is_bag && counts_as_missing(model, column, row));
}

static span kept(const st_model *model, const st_category *category, const st_column *column,
                 int64_t row) {
  span all = ids_of(model, category, column, row);
  if (category->max_length && all.end - all.begin > category->max_length) {
    if (category->keep_last)
      all.begin = all.end - category->max_length;
    else
      all.end = all.begin + category->max_length;
  }
  if (category->length && all.end - all.begin > category->length)
    all.begin = all.end - category->length;
  return all;
}

int64_t st_count_ids(const st_model *model, const st_category *category, const st_column *columns,
                     int64_t begin, int64_t end) {
  int64_t count = 0;
  for (int64_t row = begin; row < end; row++) {
    span bag = kept(model, category, &columns[category->column], row);
    count += bag.end - bag.begin;
  }
  return count;
}

static int read_weight(const st_column *weights, const char *name, int64_t at, float *weight,
                       char *error) {
  double value = 0;
  if (is_missing(weights, at)) return refuse(error, weights, name, at, "a weight is missing");
  int code = read_number(weights, name, at, &value, error);
  *weight = (float)value;
  return code;
}

/* Weights of the ids `bag` that are kept of a row; a program that wants none gets none. */
static int encode_weights(const st_model *model, const st_category *category,
                          const st_column *columns, int64_t row, span bag, float *to, char *error) {
  int wanted = model->wants[ST_IN_WEIGHTS], code = ST_OK;
  float unread, *weight = wanted ? to : &unread;
  if (category->weights < 0) {
    for (int64_t at = bag.begin; wanted && at < bag.end; at++) *weight++ = 1;
    return ST_OK;
  }
  const st_column *column = &columns[category->column], *weights = &columns[category->weights];
  const char *name = name_of(model, category->weights);
  if (weights->type == ST_TEXT)
    return st_fail(error, ST_REQUEST, "column %s: give a list of numbers, one for each id", name);
  span ids = ids_of(model, category, column, row);
  span all = bag_of(weights, row, !weights->bags && is_missing(weights, row));
  if (all.end - all.begin != ids.end - ids.begin)
    return st_fail(error, ST_REQUEST, "row %lld, column %s: %lld weights for %lld ids",
                   (long long)row, name, (long long)(all.end - all.begin),
                   (long long)(ids.end - ids.begin));
  for (int64_t at = bag.begin; !code && at < bag.end; at++, weight += wanted)
    code = read_weight(weights, name, all.begin + at - ids.begin, weight, error);
  return code;
}

/* Ids of all bags of a feature, from its start on. */
static int encode_bags(const st_model *model, int feature, const st_column *columns, int64_t begin,
                       int64_t end, st_inputs *inputs, char *error) {
  const st_category *category = &model->categories[feature];
  const st_column *column = &columns[category->column];
  const char *name = name_of(model, category->column);
  int code = check_category(category, column, name, error);
  int64_t start = inputs->ids = inputs->starts[feature];
  for (int64_t row = begin; !code && row < end; row++) {
    span bag = kept(model, category, column, row);
    if (category->is_single && bag.end - bag.begin != 1)
      return st_fail(error, ST_REQUEST, "row %lld, column %s: it has %lld ids, the model reads one",
                     (long long)row, name, (long long)(bag.end - bag.begin));
    if (!model->apart) inputs->offsets[feature * inputs->rows + row - begin] = inputs->ids;
    code = encode_values(model, category, column, bag.begin, bag.end, inputs->located, inputs->ids,
                         1, error);
    if (!code)
      code = encode_weights(model, category, columns, row, bag, inputs->weights + inputs->ids, error);
    inputs->ids += bag.end - bag.begin;
    if (model->apart) inputs->offsets[feature * inputs->stride + row - begin] = inputs->ids - start;
  }
  return code;
}

/* Whether rows have as many ids as of the feature that theirs is like. */
static int check_alike(const st_model *model, int feature, int64_t begin, const st_inputs *inputs,
                       char *error) {
  const st_category *category = &model->categories[feature];
  const int64_t *own = inputs->offsets + feature * inputs->stride;
  const int64_t *other = inputs->offsets + category->like * inputs->stride;
  for (int64_t row = 0; category->like >= 0 && row < inputs->rows; row++)
    if (own[row] != other[row])
      return st_fail(error, ST_REQUEST, "row %lld, column %s: it has another number of ids than %s",
                     (long long)(begin + row), name_of(model, category->column),
                     name_of(model, model->categories[category->like].column));
  return ST_OK;
}

/* The numbers of a vector as they are, from a place of each row on; none are zeros. */
static int encode_vector(const st_model *model, const st_vector *vector, const st_column *columns,
                         int64_t begin, int64_t end, int64_t place, st_inputs *inputs,
                         char *error) {
  const st_column *column = &columns[vector->column];
  const char *name = name_of(model, vector->column);
  if (column->type == ST_TEXT)
    return st_fail(error, ST_REQUEST, "column %s: it holds text; give lists of numbers", name);
  for (int64_t row = begin; row < end; row++) {
    float *to = inputs->dense + (row - begin) * inputs->width + place;
    span bag = bag_of(column, row, !column->bags && is_missing(column, row));
    int64_t count = bag.end - bag.begin;
    if (count && (!column->bags || count != vector->width))
      return st_fail(error, ST_REQUEST, "row %lld, column %s: it is no list of %lld numbers",
                     (long long)row, name, (long long)vector->width);
    memset(to, 0, (size_t)vector->width * sizeof *to);
    for (int64_t at = bag.begin; at < bag.end; at++) {
      double value = NAN;
      int code = is_missing(column, at) ? 0 : read_number(column, name, at, &value, error);
      if (code) return code;
      if (!isfinite(to[at - bag.begin] = (float)value))
        return refuse(error, column, name, at,
                      isnan(value) ? "a number of the vector is missing"
                                   : "the value is too large for float32");
    }
  }
  return ST_OK;
}

int st_encode(const st_model *model, const st_column *columns, int64_t begin, int64_t end,
              st_inputs *inputs, char *error) {
  int code = ST_OK, bags = model->wants[ST_IN_OFFSETS] || model->apart;
  for (int f = 0; !code && f < model->num_dense; f++)
    code = encode_dense(model, f, &columns[model->dense[f].column], begin, end, inputs, error);
  int64_t place = model->num_dense * (1 + model->flags);
  for (int v = 0; !code && v < model->num_vectors; place += model->vectors[v++].width)
    code = encode_vector(model, &model->vectors[v], columns, begin, end, place, inputs, error);
  if (!place && model->wants[ST_IN_DENSE])
    for (int64_t row = 0; row < inputs->rows; row++) inputs->dense[row] = 1;
  for (int f = 0; !code && f < model->num_categories; f++)
    code = bags ? encode_bags(model, f, columns, begin, end, inputs, error)
                : encode_ids(model, f, &columns[model->categories[f].column], begin, end, inputs,
                             error);
  for (int f = 0; !code && model->apart && f < model->num_categories; f++)
    code = check_alike(model, f, begin, inputs, error);
  if (!code && bags && !model->apart)
    inputs->offsets[model->num_categories * inputs->rows] = inputs->ids;
  return code;
}
