"""The recipe that turns a table into points, as a scikit-learn transformer that is stored without pickle."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import TransformerMixin, _fit_context
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from homophily.exceptions import DominantColumnWarning, ParameterError, UnknownCategoriesWarning
from homophily.parameters import CheckedEstimator
from homophily.state import State, StateReader, plain
from homophily.tables.columns import Table

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer

ScaleName = Literal["auto", "none", "standard"]
MissingName = Literal["median", "mean", "refuse"]

#: A column of strings with more distinct values is no category: one-hot columns would outnumber the rest.
MOST_CATEGORIES = 100
#: Terms of a text column that count, the most frequent ones; scikit-learn's default is all, which memory does not hold.
MOST_TERMS = 20_000
#: Scales are alike if the ranges of most columns are within this factor of the largest …
ALIKE = 10.0
#: … of all of fewer columns than FEW_COLUMNS, and of this share of more: images have dark corners.
ALIKE_SHARE, FEW_COLUMNS = 0.8, 10
#: The share of the squared distances from which on a single column is warned about.
DOMINANT = 0.95


class CategoriesError(ParameterError):
    """A column holds too many different strings to be a category."""

    def __init__(self, column: str, count: int) -> None:
        self.column, self.count = column, count
        #: What is wrong, without what to do: the service's options have other names.
        self.problem = (
            f"Column {column!r} holds {count:,} different strings, more than the {MOST_CATEGORIES} that count as "
            "categories"
        )
        advice = f"if they are texts, pass text=[{column!r}]; if the column is an id, pass ignore=[{column!r}]."
        super().__init__(f"{self.problem}: {advice}", "X")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.column, self.count)


@dataclass(eq=False, repr=False, kw_only=True)
class Preprocessing(TransformerMixin, CheckedEstimator):
    r"""Turns a table with named columns into points.

    Numbers are standardised where their scales differ, strings become one-hot columns, vectors stay vectors, text
    becomes TF-IDF weights where asked for, and missing values are filled in by a rule. ``steps_`` says in sentences
    what was done. New rows are matched by column name, in any order.

    Parameters
    ----------
    scale : {"auto", "none", "standard"}, default="auto"
        Whether numbers are centred and divided by their standard deviation. "auto" does so if the ranges of the
        columns differ by more than a factor of 10; a column of strings counts as one of range 1. A vector is divided by
        one number, so that its geometry stays.
    missing : {"median", "mean", "refuse"}, default="median"
        What a missing number is replaced by. A missing string belongs to no category.
    text : sequence of str, default=()
        Columns of strings whose words are counted (TF-IDF). The points are sparse then, and each text counts as much as
        all other columns together.
    ignore : sequence of str, default=()
        Columns that are no features. Name ids here: they are not detected, and an id of integers would count as a
        number. Tables may have these columns, new ones too.

    Attributes
    ----------
    feature_names_in_ : ndarray of str
        The columns of ``fit`` that are features.
    steps_ : list of str
        What is done to the columns, in sentences.
    widths_ : dict of str to int
        How many numbers each column holds in a row; 0 for strings.

    See Also
    --------
    ERRClassifier : Labels the points.

    Examples
    --------
    >>> from homophily import Preprocessing
    >>> table = {"height": [1.7, 1.8, 1.6], "income": [20e3, 90e3, 40e3], "city": ["Bonn", "Kiel", "Bonn"]}
    >>> preprocessing = Preprocessing().fit(table)
    >>> preprocessing.transform(table).round(1).tolist()
    [[0.0, -1.0, 1.0, 0.0], [1.2, 1.4, 0.0, 1.0], [-1.2, -0.3, 1.0, 0.0]]
    >>> print(*preprocessing.steps_, sep="\n")
    2 numbers standardised; 1 category one-hot (city: 2).
    No value is missing.
    """

    scale: ScaleName = "auto"
    missing: MissingName = "median"
    text: Sequence[str] = ()
    ignore: Sequence[str] = ()

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "scale": [StrOptions({"auto", "none", "standard"})],
        "missing": [StrOptions({"median", "mean", "refuse"})],
        "text": [tuple, list],
        "ignore": [tuple, list],
    }

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Learn scales, categories and replacements from a table; y is ignored."""
        table = Table.of(X)
        table = table.select([name for name in table.names if name not in self.ignore], self.ignore)
        if not table.names:
            raise ParameterError("The 'X' parameter of Preprocessing must have columns. Got none instead.", "X")
        if not len(table):
            raise ParameterError("The 'X' parameter of Preprocessing must have rows. Got none instead.", "X")
        unknown = sorted(
            set(self.text) - {name for name, width in zip(table.names, table.widths, strict=True) if not width}
        )
        if unknown:
            raise ParameterError(
                f"The 'text' parameter of Preprocessing must name columns of strings. Got {unknown[0]!r} instead.",
                "text",
            )
        self.feature_names_in_ = np.array(table.names, dtype=object)
        self.n_features_in_ = len(table.names)
        self._widths = table.widths
        names = [name for name, width in zip(table.names, table.widths, strict=True) if not width]
        self._categories = {
            name: _categories(name, values)
            for name, values in zip(names, table.strings, strict=True)
            if name not in self.text
        }
        self._vectorizers = {
            name: _vectorizer(name, values)
            for name, values in zip(names, table.strings, strict=True)
            if name in self.text
        }
        gaps = self._fit_numbers(table)
        self.steps_ = [self._describe(), self._describe_gaps(table, gaps)]
        self._warn_of_dominance(self.transform(table))
        return self

    def transform(self, X: Any) -> Any:
        """Turn rows of a table into points: an array, or a CSR array if there is text.

        An array of numbers is taken by position if every column of ``fit`` held numbers.
        """
        check_is_fitted(self)
        table = self._matched(X)
        numbers = np.where(np.isnan(table.numbers), self._fill, table.numbers) if len(table) else table.numbers
        if np.isinf(numbers).any():
            raise ParameterError(
                "The 'X' parameter of Preprocessing must hold finite numbers. Got infinity instead.", "X"
            )
        if self.missing == "refuse" and np.isnan(table.numbers).any():
            self._refuse_gaps(table)
        blocks: list[Any] = [(numbers - self._center) / self._factor]
        texts: list[Any] = []
        for name, values in zip(self._string_names(), table.strings, strict=True):
            if name in self._categories:
                blocks.append(self._one_hot(name, values))
            else:
                texts.append(self._vectorizers[name].transform(values))
        dense = np.hstack(blocks)
        if not texts:
            return dense
        if dense.shape[1]:
            texts.insert(0, sparse.csr_array(dense / np.sqrt(dense.shape[1])))
        return sparse.csr_array(sparse.hstack(texts, format="csr"))

    @property
    def widths_(self) -> dict[str, int]:
        """How many numbers each column of ``fit`` holds in a row: 1, more for a vector, 0 for strings."""
        check_is_fitted(self)
        return dict(zip(self.feature_names_in_.tolist(), self._widths, strict=True))

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:  # noqa: ARG002
        """The names of the columns that ``transform`` returns."""
        check_is_fitted(self)
        return np.array([name for _, name in self._outputs()], dtype=object)

    # -- learning ------------------------------------------------------------------------------------------------------

    def _fit_numbers(self, table: Table) -> NDArray[np.int64]:
        """Learn what numbers are replaced, centred and divided by; returns the missing ones in each column."""
        numbers = np.asarray(table.numbers, dtype=np.float64)
        if np.isinf(numbers).any():
            raise ParameterError(
                "The 'X' parameter of Preprocessing must hold finite numbers. Got infinity instead.", "X"
            )
        gaps = np.isnan(numbers)
        if self.missing == "refuse" and gaps.any():
            self._refuse_gaps(table)
        with warnings.catch_warnings():
            # A column without any value.
            warnings.simplefilter("ignore", RuntimeWarning)
            middle = np.nanmean if self.missing == "mean" else np.nanmedian
            fill = middle(numbers, axis=0) if numbers.size else np.zeros(numbers.shape[1])
        self._fill = np.nan_to_num(fill)
        numbers = np.where(gaps, self._fill, numbers)
        deviations = numbers.std(axis=0)
        self._center, self._factor = np.zeros(numbers.shape[1]), np.ones(numbers.shape[1])
        ranges = np.ptp(numbers, axis=0)
        self._is_constant = ranges == 0
        self._is_scaled = self.scale == "standard" or (self.scale == "auto" and self._scales_differ(ranges))
        if self._is_scaled:
            self._center = numbers.mean(axis=0)
            for place in self._places().values():
                self._factor[place] = np.sqrt(np.mean(deviations[place] ** 2)) or 1.0
        return np.asarray(gaps.sum(axis=0))

    def _scales_differ(self, ranges: NDArray[Any]) -> bool:
        """Whether columns have different units, by their ranges; vectors by their largest, and alone they are left."""
        if not self._categories and 1 not in self._widths:
            return False
        spread = np.array([ranges[place].max() for place in self._places().values()])
        spread = np.concatenate([spread[spread > 0], np.ones(len(self._categories))])
        alike = spread >= spread.max(initial=0.0) / ALIKE
        return bool(alike.mean() < (1.0 if len(spread) < FEW_COLUMNS else ALIKE_SHARE))

    def _warn_of_dominance(self, points: Any) -> None:
        if sparse.issparse(points):
            return
        owners = np.array([position for position, _ in self._outputs()])
        variances = np.bincount(owners, weights=points.var(axis=0), minlength=len(self._widths))
        if np.count_nonzero(variances) > 1 and variances.max() > DOMINANT * variances.sum():
            name = self.feature_names_in_[variances.argmax()]
            warnings.warn(
                f"Column {name!r} makes up {100 * variances.max() / variances.sum():.1f} % of the squared distances "
                "between points, so that the others hardly count: standardise the numbers (scale='standard'), or drop "
                "the column.",
                DominantColumnWarning,
                stacklevel=4,
            )

    # -- describing ----------------------------------------------------------------------------------------------------

    def _describe(self) -> str:
        count = sum(width == 1 for width in self._widths)
        vectors = [width for width in self._widths if width > 1]
        treated = "standardised" if self._is_scaled else "as they are"
        parts = []
        if count:
            parts.append(f"{_counted(count, 'number')} {treated if count > 1 or self._is_scaled else 'as it is'}")
        if vectors:
            lengths = ", ".join(map(str, vectors))
            parts.append(
                f"{_counted(len(vectors), 'vector')} ({lengths}) {'scaled' if self._is_scaled else 'as given'}"
            )
        if self._categories:
            counts = ", ".join(f"{name}: {len(values)}" for name, values in self._categories.items())
            noun = "category" if len(self._categories) == 1 else "categories"
            parts.append(f"{len(self._categories)} {noun} one-hot ({counts})")
        if self._vectorizers:
            counts = ", ".join(f"{name}: {len(each.vocabulary_)} terms" for name, each in self._vectorizers.items())
            parts.append(f"{_counted(len(self._vectorizers), 'text')} as TF-IDF ({counts})")
        constant = [name for name, place in self._places().items() if self._is_constant[place].all()]
        if constant:
            parts.append(f"without effect, as constant: {', '.join(constant)}")
        return "; ".join(parts) + "."

    def _describe_gaps(self, table: Table, gaps: NDArray[np.int64]) -> str:
        parts = []
        if gaps.any():
            listed = ", ".join(
                f"{name}: {gaps[place].sum()}" for name, place in self._places().items() if gaps[place].any()
            )
            parts.append(f"numbers replaced by the column's {self.missing} ({listed})")
        empty = {
            name: int(np.count_nonzero(values == ""))
            for name, values in zip(self._string_names(), table.strings, strict=True)
        }
        if any(empty.values()):
            listed = ", ".join(f"{name}: {count}" for name, count in empty.items() if count)
            parts.append(f"strings belong to no category ({listed})")
        return f"Missing values: {'; '.join(parts)}." if parts else "No value is missing."

    def _refuse_gaps(self, table: Table) -> None:
        row, column = np.argwhere(np.isnan(table.numbers))[0]
        name = next(name for name, place in self._places().items() if column < place.stop)
        raise ParameterError(f"Column {name!r} has no value in row {row}, and missing='refuse' allows none.", "X")

    # -- applying ------------------------------------------------------------------------------------------------------

    def _matched(self, X: Any) -> Table:
        """A table with the columns of ``fit``, in their order and kinds."""
        if isinstance(X, np.ndarray):
            if not all(self._widths) or X.ndim != 2 or X.shape[1] != sum(self._widths):
                raise ParameterError(
                    f"The 'X' parameter of Preprocessing must be a table with the columns of 'fit': "
                    f"{', '.join(map(repr, self.feature_names_in_[:10]))}. Got an array of shape {X.shape} instead.",
                    "X",
                )
            return Table(tuple(self.feature_names_in_), self._widths, X)
        table = _with_empty_columns(Table.of(X).select(tuple(self.feature_names_in_), self.ignore), self._widths)
        if table.widths != self._widths:
            place = next(place for place, width in enumerate(table.widths) if width != self._widths[place])
            raise ParameterError(
                f"Column {table.names[place]!r} must hold {_kind(self._widths[place])} as in 'fit'. "
                f"Got {_kind(table.widths[place])} instead.",
                "X",
            )
        return table

    def _one_hot(self, name: str, values: NDArray[Any]) -> NDArray[np.float64]:
        categories = self._categories[name]
        positions = {category: position for position, category in enumerate(categories)}
        found = np.array([positions.get(value, -1) for value in values], dtype=np.int64)
        unknown = sorted({value for value, position in zip(values, found, strict=True) if position < 0 and value != ""})
        if unknown:
            warnings.warn(
                f"Column {name!r} has {_counted(len(unknown), 'value')} that 'fit' has not seen, such as "
                f"{unknown[0]!r}; these rows belong to no category of the column.",
                UnknownCategoriesWarning,
                stacklevel=4,
            )
        return np.asarray(found[:, None] == np.arange(len(categories)), dtype=np.float64)

    def _places(self) -> dict[str, slice]:
        """Where the numbers of each column are among all numbers."""
        ends = np.cumsum(self._widths)
        return {
            name: slice(int(end) - width, int(end))
            for name, width, end in zip(self.feature_names_in_, self._widths, ends, strict=True)
            if width
        }

    def _string_names(self) -> list[str]:
        return [name for name, width in zip(self.feature_names_in_, self._widths, strict=True) if not width]

    def _outputs(self) -> Iterable[tuple[int, str]]:
        """The column of the table that each column of the points comes from, and the latter's name."""
        for place, (name, width) in enumerate(zip(self.feature_names_in_, self._widths, strict=True)):
            for number in range(width):
                yield place, name if width == 1 else f"{name}_{number}"
        for place, name in enumerate(self.feature_names_in_):
            for category in self._categories.get(name, ()):
                yield place, f"{name}_{category}"
        for place, name in enumerate(self.feature_names_in_):
            if name in self._vectorizers:
                for term in self._vectorizers[name].get_feature_names_out():
                    yield place, f"{name}_{term}"

    # -- storing -------------------------------------------------------------------------------------------------------

    def to_arrays(self) -> State:
        """The fitted recipe as arrays; see :mod:`homophily.storage`."""
        arrays = {
            "fill": self._fill,
            "center": self._center,
            "factor": self._factor,
            "constant": self._is_constant,
            **{f"idf_{place}": each.idf_ for place, each in enumerate(self._vectorizers.values())},
        }
        document = {
            "parameters": plain(self.get_params()),
            "columns": [[str(name), width] for name, width in zip(self.feature_names_in_, self._widths, strict=True)],
            "categories": {name: list(values) for name, values in self._categories.items()},
            "terms": {name: each.get_feature_names_out().tolist() for name, each in self._vectorizers.items()},
            "scaled": self._is_scaled,
            "steps": self.steps_,
        }
        return State(arrays, document)

    @classmethod
    def from_arrays(cls, stored: StateReader) -> Self:
        """The recipe whose :meth:`to_arrays` is stored."""
        recipe = cls(**stored.parameters(cls))
        recipe._validate_params()
        columns = stored.value("columns", list)
        recipe.feature_names_in_ = np.array([str(name) for name, _ in columns], dtype=object)
        recipe.n_features_in_ = len(columns)
        recipe._widths = tuple(int(width) for _, width in columns)
        recipe._categories = {
            name: [str(value) for value in values] for name, values in stored.value("categories", dict).items()
        }
        width = sum(recipe._widths)
        recipe._fill, recipe._center, recipe._factor = (
            stored.copy(name, (width,)) for name in ("fill", "center", "factor")
        )
        recipe._is_constant = stored.array("constant", (width,), ("bool",))
        recipe._is_scaled = stored.value("scaled", bool)
        recipe._vectorizers = {}
        for place, (name, terms) in enumerate(stored.value("terms", dict).items()):
            vectorizer = _new_vectorizer(vocabulary={str(term): position for position, term in enumerate(terms)})
            vectorizer.idf_ = stored.copy(f"idf_{place}", (len(terms),))
            recipe._vectorizers[name] = vectorizer
        strings = {name for name, width in zip(recipe.feature_names_in_, recipe._widths, strict=True) if not width}
        if strings != recipe._categories.keys() | recipe._vectorizers.keys():
            raise ValueError("The 'columns' of the preprocessing do not agree with its categories and terms.")
        recipe.steps_ = [str(step) for step in stored.value("steps", list)]
        return recipe


def _categories(name: str, values: NDArray[Any]) -> list[str]:
    found = sorted(set(values.tolist()) - {""})
    if len(found) > MOST_CATEGORIES:
        raise CategoriesError(name, len(found))
    return found


def _with_empty_columns(table: Table, widths: tuple[int, ...]) -> Table:
    """The table with columns that hold nothing in the kind that they had in ``fit``: their own cannot be seen."""
    if table.widths == widths:
        return table
    numbers, strings = iter(np.hsplit(table.numbers, np.cumsum(table.widths)[:-1])), iter(table.strings)
    columns: dict[str, NDArray[Any]] = {}
    for name, width, wanted in zip(table.names, table.widths, widths, strict=True):
        block = next(numbers)
        values = block if width else next(strings)
        if width == 1 and wanted == 0 and np.isnan(block).all():
            values = np.full(len(block), "", dtype=object)
        elif width == 0 and wanted and not any(values):
            values = np.full((len(values), wanted), np.nan)
        columns[name] = values
    return Table.from_columns(columns)


def _new_vectorizer(**parameters: Any) -> TfidfVectorizer:
    from sklearn.feature_extraction.text import TfidfVectorizer  # tables without texts need not wait for its import

    return TfidfVectorizer(**parameters)


def _vectorizer(name: str, values: NDArray[Any]) -> TfidfVectorizer:
    try:
        return _new_vectorizer(max_features=MOST_TERMS).fit(values)
    except ValueError:
        raise ParameterError(f"Column {name!r} holds no words to compare texts by: drop it.", "X") from None


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _kind(width: int) -> str:
    return {0: "strings", 1: "numbers"}.get(width, f"vectors of {width} numbers")
