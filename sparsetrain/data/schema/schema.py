# SPDX-License-Identifier: Apache-2.0
"""`Schema`: a description of a log's columns, needed if they do not have Criteo's names.

A schema is read from TOML or JSON, strictly: the error for an unknown key suggests the nearest
known key. It is saved with the encoder, so a model scores data with the schema of its training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sparsetrain.data.dense.kind import Dense, Kind
from sparsetrain.data.dense.vector import Vectors
from sparsetrain.data.derived.kind import check_counts
from sparsetrain.data.schema.column_rule import KEEP, ColumnRule, Linear, TextFormat
from sparsetrain.data.schema.derived import Derived
from sparsetrain.data.schema.schema_file import as_toml, fill, parse
from sparsetrain.data.shared_tables import tables_of
from sparsetrain.errors import ConfigError
from sparsetrain.labels.label import Labels, click
from sparsetrain.parsing.identity import KINDS
from sparsetrain.system.argument_checks import is_number, require_type
from sparsetrain.system.html import describe


@dataclass(frozen=True)
class Schema(
    Vectors,
):
    """Roles and rules of columns; without `categories`, columns have Criteo's names.

    Attributes
    ----------
    label : str or None
        The column of the only label, 0 or 1; by default `label`, in upper or lower case.
    labels : mapping from str to str, int or Label
        Instead of `label`: the columns of one or several labels, and the kind of each: "binary" (0
        or 1), "real" (any number), "count" (0 or more), "quantiles:0.1,0.9" (any number; its
        quantiles are predicted) or a number of classes, counted from 0. With several labels, a row
        may lack some of them.
    dense : tuple of str
        Numeric columns. A value x becomes `log(max(x, -2) + 3)`, so all values below -2 become
        equal. May be empty.
    categories : tuple of str or None
        Category columns, in the order of the features; derived columns may be among them.
    time : str or None
        The column by which data can be split by time.
    derived : mapping from str to Derived
    columns : mapping from str to ColumnRule
    text : TextFormat
    weights : str or None
        The column with a factor for each row's loss; only training data must have it.
    vectors : mapping from str to int
        Column with lists of equal length -> that length. The numbers become dense features,
        unchanged.
    linear : mapping from str to Linear
        Dense columns that are shifted and scaled, such as those with numbers below -2.

    Examples
    --------
    >>> hour = Derived("time", modulo=24)
    >>> Schema(categories=("site", "hour"), derived={"hour": hour}).dense
    ()
    """

    label: str | None = None
    dense: tuple[str, ...] = ()
    categories: tuple[str, ...] | None = None
    time: str | None = None
    derived: Mapping[str, Derived] = field(default_factory=dict)
    columns: Mapping[str, ColumnRule] = field(default_factory=dict)
    text: TextFormat = TextFormat()
    weights: str | None = None
    linear: Mapping[str, Linear] = field(default_factory=dict)
    labels: Mapping[str, str | int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("dense", "categories"):
            object.__setattr__(self, key, _names_of(key, getattr(self, key)))
        if self.labels:
            object.__setattr__(self, "labels", Labels(self.labels).kinds)
        _check(self)
        for kind in DENSE_KINDS:
            options = getattr(self, kind.key).items()
            plain = {name: kind.checked(f"{kind.key}.{name}", option) for name, option in options}
            object.__setattr__(self, kind.key, plain)

    def rule(self, column: str) -> ColumnRule:
        """Return the rule of a category column."""
        return self.columns.get(column, ColumnRule())

    @cached_property
    def all_labels(self) -> Labels:
        """The labels by name; the default name of a single label is `label`."""
        return Labels(self.labels) if self.labels else click(self.label or "label")

    @cached_property
    def inputs(self) -> dict[str, Dense]:
        """The dense columns that are not single numbers, such as vectors, by name."""
        each = ((kind, getattr(self, kind.key)) for kind in DENSE_KINDS)
        return {n: kind.column(n, option) for kind, named in each for n, option in named.items()}

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns that training data must have besides features and labels."""
        return (self.weights,) if self.weights else ()

    @property
    def share_embedding(self) -> dict[str, str]:
        """Column without a table of its own -> column that owns its table."""
        pairs = ((name, rule.share_embedding) for name, rule in self.columns.items())
        return {name: owner for name, owner in pairs if owner is not None}

    def tables_of(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the name of each category column's table, which is its owner's name."""
        share = self.share_embedding
        return tables_of(columns, share) if share else tuple(columns)

    def owner(self, column: str) -> str:
        """Return the category column that owns the table of a column."""
        return self.rule(column).share_embedding or column

    def describe_sharing(self, columns: Sequence[str]) -> str:
        """Return the part of `Columns.layout` that names the columns without their own table."""
        pairs = ((name, self.owner(name)) for name in columns)
        return "".join(f", {n} shares the table of {owner}" for n, owner in pairs if n != owner)

    def check_known(self, known: Schema, done: str, do: str) -> None:
        """Refuse this schema if its weights or shared tables differ from an encoder's, `known`.

        `done` and `do` are for messages: how the encoder was made, and how to make a suitable one.
        """
        own, other = known.weights, self.weights
        if other not in (None, own):
            was = f"with {own!r}" if own else "without weights"
            raise ConfigError(
                f"weights is {other!r}, but {done} {was}; leave it out, or {do} again with "
                f"weights={other!r}"
            )
        if self.share_embedding and self.share_embedding != known.share_embedding:
            raise ConfigError(
                f"share_embedding is {self.share_embedding}, but {done} with "
                f"{known.share_embedding or 'a table for each column'}; leave it out, or {do} again"
            )

    @property
    def to_learn(self) -> dict[str, Derived]:
        """The computed derived columns with an option that must first be learnt from data."""
        return {name: rule for name, rule in self.made.items() if rule.of.learns}

    @property
    def bins_to_learn(self) -> dict[str, Derived]:
        """The derived columns in `bins` with boundaries that must first be learnt from data."""
        return {n: r for n, r in self.derived.items() if n not in self.made and r.of.learns}

    @property
    def bins(self) -> dict[str, Derived]:
        """Source column -> derived column with bin boundaries, if only a model uses these."""
        return {rule.source: rule for n, rule in self.derived.items() if n not in self.made}

    @cached_property
    def made(self) -> dict[str, Derived]:
        """The derived columns that are computed for each row: all but those in `bins`."""
        if not self.derived:
            return {}
        named = {*(self.categories or ()), *self.dense, *self.all_labels, self.time, self.weights}

        def is_bins(name: str, rule: Derived) -> bool:
            of_numbers = self.categories is None or rule.source in self.dense
            return name not in named and of_numbers and rule.cuts_numbers

        return {name: rule for name, rule in self.derived.items() if not is_bins(name, rule)}

    @property
    def wanted(self) -> frozenset[str]:
        """Names of all columns of the data that this schema mentions."""
        named = {*(self.categories or ()), *self.dense, *self.all_labels, self.time or "label"}
        sources = {source for derived in self.derived.values() for source in derived.sources}
        weights = (*self.inputs, self.weights, *(rule.weights for rule in self.columns.values()))
        return frozenset({*named, *sources, *(name for name in weights if name)})

    def as_learnt(self, known: Schema) -> Schema:
        """Return this schema with the options of derived columns that `known` has learnt."""
        rules = self.derived.items()
        made = {name: rule.as_learnt(known.derived.get(name, rule)) for name, rule in rules}
        return replace(self, derived=made)

    @classmethod
    def read(cls, given: Schema | str | Path | None, weights: str | None = None) -> Schema:
        """Return a schema unchanged, or read one from a TOML or JSON file.

        None gives the empty schema. `weights`, if given, overrides the schema's column of weights.

        Raises
        ------
        ConfigError
            If the file is missing, malformed, or has an unknown or invalid entry.
        """
        require_type("schema", given, (Schema, str, Path), "a Schema, or the path of a file")
        require_type("weights", weights, str, "the name of a column")
        schema = given if isinstance(given, Schema) else cls()
        if isinstance(given, (str, Path)):
            schema = cls.from_dict(parse(Path(given)), str(given))
        return schema if weights is None else replace(schema, weights=weights)

    def with_shared(self, columns: Mapping[str, str]) -> Schema:
        """Return a schema with shared tables.

        Parameters
        ----------
        columns : mapping from str to str
            Column -> the column whose table and values it shares.

        Examples
        --------
        >>> schema = Schema(categories=("item", "history"))
        >>> schema.with_shared({"history": "item"}).share_embedding
        {'history': 'item'}
        """
        share = {
            name: replace(self.columns.get(name, ColumnRule()), share_embedding=other)
            for name, other in columns.items()
        }
        return replace(self, columns={**self.columns, **share})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "schema") -> Schema:
        """Build a schema from plain values, as `to_dict` returns them."""
        if isinstance(values, Mapping):  # before pydantic, with its long errors for unions
            Labels(values.get("labels") or {}, f"{where}: labels")
        return fill(values, cls, where)

    def to_toml(self) -> str:
        """Return the schema as the text of a TOML file, which `read` accepts."""
        values = self.to_dict()
        for derived in values.get("derived", {}).values():
            if derived["divide"] == 1:  # the default, which most rules do not use
                del derived["divide"]
        return as_toml(values)

    def _repr_html_(self) -> str:
        return describe("Schema", self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that fit JSON; unset values are left out."""
        values = _plain(asdict(self))
        for derived in values.get("derived", {}).values():
            derived["from"] = derived.pop("source")
        return values


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items() if v is not None and v != () and v != {}}
    return list(value) if isinstance(value, tuple) else value


def _names_of(key: str, names: Any) -> tuple[str, ...] | None:
    """Return a sequence of column names as a tuple."""
    if names is None and key == "categories":
        return None
    given = None if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    if given is None or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"{key} is {names!r:.60}; give a list of the names of columns")
    return tuple(map(str, given))  # converts NumPy's strings to Python's


def _check(schema: Schema) -> None:
    """Refuse schemas that are invalid for any data."""
    for key in ("label", "time", "weights"):
        require_type(key, getattr(schema, key), str, "the name of a column")
    for key, kind in (("derived", Derived), ("columns", ColumnRule), ("linear", Linear)):
        of_columns = getattr(schema, key)
        require_type(key, of_columns, Mapping, f"a dict, of columns to a {kind.__name__} each")
        for name, rule in of_columns.items():
            require_type(f"{key}.{name}", rule, kind, f"a {kind.__name__}")
    _check_inputs(schema)
    if schema.labels and schema.label is not None:
        raise ConfigError("label and labels are both given; drop label")
    named = [*(schema.categories or ()), *schema.dense]
    if not {*named}.isdisjoint(schema.labels):
        both = next(name for name in schema.labels if name in named)
        raise ConfigError(f"labels: {both!r} is a dense or category column")
    twice = [name for name in named if named.count(name) > 1]
    if twice:
        raise ConfigError(f"{twice[0]!r} is named twice among dense and categories; drop one")
    if schema.categories == ():
        raise ConfigError("categories is empty; name at least one column")
    if schema.dense and schema.categories is None:
        raise ConfigError("dense is given without categories; name both")
    if schema.weights is not None and schema.weights in (*named, *schema.all_labels):
        raise ConfigError(f"weights: {schema.weights!r} is a label, dense or category column")
    if schema.weights == "label":
        raise ConfigError(
            "weights: 'label' is the label's name in converted data; rename the column"
        )
    for name, law in schema.linear.items():
        if name not in schema.dense:
            raise ConfigError(f"linear.{name}: it is not among the dense columns; add it there")
        if not (is_number(law.center) and is_number(law.scale) and law.scale):
            raise ConfigError(f"linear.{name}: center is a number, and scale one other than 0")
        if not math.isfinite(law.center) or not math.isfinite(law.scale):
            raise ConfigError(f"linear.{name}: center and scale must be finite")
    for name, rule in schema.derived.items():
        rule.check(f"derived.{name}")
    for name, rule in schema.columns.items():
        check_counts(f"columns.{name}", rule, ("min_count", "max_rows", "max_length"))
        if rule.keep not in KEEP:
            raise ConfigError(f"columns.{name}: keep is {rule.keep!r}; give 'first' or 'last'")
        if rule.kind not in (None, *KINDS):
            raise ConfigError(f"columns.{name}: kind is {rule.kind!r}; give one of {KINDS}")
        if schema.categories is not None and name not in schema.categories:
            raise ConfigError(f"columns.{name}: it is not among the categories; add it there")
    _check_sharing(schema)
    if len(schema.text.delimiter or ",") != 1:
        raise ConfigError(f"text.delimiter is {schema.text.delimiter!r}; it must be one character")


def _check_inputs(schema: Schema) -> None:
    """Refuse a column of `DENSE_KINDS`, such as a vector, that also has a different role."""
    named = {kind.key: getattr(schema, kind.key) for kind in DENSE_KINDS}
    for key, names in named.items():
        require_type(key, names, Mapping, "a dict, of columns to an option each")
        if names and schema.categories is None:
            raise ConfigError(f"{key} is given without categories; name both")
    if not any(named.values()):
        return
    used = [*(schema.categories or ()), *schema.dense, *schema.all_labels, *schema.derived]
    used += [schema.weights or "", *(name for names in named.values() for name in names)]
    for key, names in named.items():
        for name in names:
            require_type(key, name, str, "the name of a column")
            if used.count(name) > 1:
                raise ConfigError(f"{key}: {name!r} is named as another column too; drop one")


def _check_sharing(schema: Schema) -> None:
    """Refuse a shared table if a column's settings contradict its owner's."""
    share = schema.share_embedding
    if not share:
        return
    for name, owner in share.items():
        require_type(f"columns.{name}.share_embedding", owner, str, "the name of a column")
    # Without `categories`, the columns are unknown until data are read.
    known = schema.categories or tuple(dict.fromkeys([*share, *share.values()]))
    schema.tables_of(known)
    for name, owner in share.items():
        for key in ("min_count", "max_rows", "kind"):
            own, its = getattr(schema.rule(name), key), getattr(schema.rule(owner), key)
            if own not in (None, its):
                raise ConfigError(
                    f"columns.{name}: {key} is {own}, but it shares the table of {owner!r}, "
                    f"which has {its or 'none of its own'}; set it there alone"
                )


DENSE_KINDS: tuple[type[Kind], ...] = Schema.__bases__
