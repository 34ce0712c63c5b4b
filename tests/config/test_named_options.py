"""Options by name: suggestions and parsing."""

from __future__ import annotations

import pytest

from ottla.config.named_options import Options, any_of, did_you_mean, nearest


class Bad(ValueError):
    pass


def options(**given: str) -> Options:
    return Options(given, Bad)


def test_the_nearest_name_is_suggested():
    assert nearest("linger_sm", ["acks", "linger_ms"]) == "linger_ms"
    assert nearest("colour", ["acks"]) is None
    assert did_you_mean("linger_sm", ["linger_ms"]) == "; did you mean linger_ms?"
    assert did_you_mean("maxrow", {"maxrows": "maxRows"}, shown={"maxrows": "maxRows"}) == "; did you mean maxRows?"
    assert did_you_mean("colour", ["acks"]) == ""
    assert did_you_mean("colour", ["acks"], "there are acks") == "; there are acks"
    assert did_you_mean("logs", ["log.dirs"], cutoff=0.9) == ""


def test_words_are_listed_as_in_a_sentence():
    assert any_of(["a"]) == "a"
    assert any_of(["a", "b"]) == "a or b"
    assert any_of(["a", "b", "c"]) == "a, b or c"


def test_option_names_are_case_insensitive():
    given = options(maxRows="5", TABLES=" a, b,", snapshot="Never", on="TRUE")
    assert given.number("maxrows") == 5
    assert given.names("tables") == ("a", "b")
    assert given.one_of("SNAPSHOT", ("initial", "never")) == "never"
    assert given.flag("on", False)
    assert given.needed("maxRows", "5") == "5"
    assert given.first(("nothing", "tables")) == "tables"
    assert (given.value("nothing"), given.number("nothing"), given.names("nothing")) == (None, None, ())
    assert given.flag("nothing", True)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda given: given.check_known(["maxRows", "tables"]), "no option 'maxRow'; did you mean maxRows?"),
        (lambda given: given.check_known(["key"], ["maxrow"]), "no option 'tables'; there are key"),
        (lambda given: given.number("tables"), "tables is 'a'; it is a whole number from 1 on"),
        (lambda given: given.number("zero"), "zero is '0'; it is a whole number from 1 on"),
        (lambda given: given.flag("tables", True), "tables is 'a'; it can be true or false"),
        (lambda given: given.needed("url", "postgresql://"), "the option url is missing; for example postgresql://"),
        (lambda given: given.refuse(("key", "tables"), "it has none"), "tables cannot be set here: it has none"),
        (lambda given: given.refuse_together(("tables", "zero")), "tables and zero contradict each other"),
    ],
)
def test_an_error_has_the_name_of_the_option(ask, message):
    given = options(maxRow="1", tables="a", zero="0")
    with pytest.raises(Bad) as refused:
        ask(given)
    assert message in str(refused.value)


def test_a_number_may_be_zero_where_allowed():
    assert options(zero="0").number("zero", 0) == 0
