"""The declarations as test data: hypothesis strategies, fuzzing and corpora.

from_construct(declared)     values that a construct can build
containers("gguf")           whole files, valid by construction
corruptions(file)            files that break one rule or field, each with the expected error
fuzz(format, 1000)           tries such files on this package
corpus(format, 1000)         such files, for the tests of other readers
"""

from glft_schema.errors import install

try:
    import hypothesis
except ImportError as error:
    raise ImportError(f"glft_schema.testing needs hypothesis: {install('fuzz')}") from error

from glft_schema.testing.containers import containers
from glft_schema.testing.corpora import read_corpus, write_corpus
from glft_schema.testing.corruption import corruptions, rule_ids
from glft_schema.testing.damage import Corruption
from glft_schema.testing.fuzzing import Case, Failure, Fuzzed, PropertyError, cases, check, corpus, fuzz
from glft_schema.testing.values import from_construct, values_of

__all__ = [
    "Case",
    "Corruption",
    "Failure",
    "Fuzzed",
    "PropertyError",
    "cases",
    "check",
    "containers",
    "corpus",
    "corruptions",
    "from_construct",
    "fuzz",
    "read_corpus",
    "rule_ids",
    "values_of",
    "write_corpus",
]

del hypothesis
