"""Settings: parsing, and errors that say what is allowed."""

import pytest

from ottla.config.setting import Setting, SettingType, is_sensitive, text_of


def setting(kind, default=None, **limits):
    return Setting("a.name", kind, default, "A sentence.", **limits)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (SettingType.INT, " 42 ", 42),
        (SettingType.INT, "+7", 7),
        (SettingType.LONG, "-9223372036854775808", -(2**63)),
        (SettingType.SHORT, "32767", 32767),
        (SettingType.DOUBLE, "0.5", 0.5),
        (SettingType.BOOLEAN, "True", True),
        (SettingType.BOOLEAN, "false", False),
        (SettingType.STRING, " x ", "x"),
        (SettingType.LIST, "a, b,c", ("a", "b", "c")),
        (SettingType.LIST, "", ()),
        (SettingType.PASSWORD, " kept as it is ", " kept as it is "),
    ],
)
def test_valid_texts_are_parsed(kind, text, value):
    assert setting(kind).parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (SettingType.INT, "2147483648"),
        (SettingType.INT, "1_000"),
        (SettingType.INT, "١"),
        (SettingType.INT, "1.5"),
        (SettingType.INT, ""),
        (SettingType.INT, "9" * 5000),
        (SettingType.LONG, "9223372036854775808"),
        (SettingType.DOUBLE, "nan"),
        (SettingType.DOUBLE, "inf"),
        (SettingType.DOUBLE, "half"),
        (SettingType.BOOLEAN, "yes"),
        (SettingType.BOOLEAN, "1"),
    ],
)
def test_invalid_texts_are_refused(kind, text):
    with pytest.raises(ValueError):
        setting(kind).parse(text)


@pytest.mark.parametrize(
    ("built", "text", "sentence"),
    [
        (setting(SettingType.INT, low=1), "0", "an integer of at least 1 and at most 2147483647"),
        (setting(SettingType.LONG, low=-1), "-2", "an integer of at least -1"),
        (setting(SettingType.INT, low=1, high=17), "18", "an integer from 1 to 17"),
        (setting(SettingType.DOUBLE, low=0, high=1), "1.5", "a number from 0 to 1"),
        (setting(SettingType.BOOLEAN), "on", "true or false"),
        (setting(SettingType.STRING, choices=("a", "b", "c")), "d", "a, b or c"),
        (setting(SettingType.LIST, choices=("compact", "delete")), "delete,x", "a list of compact or delete"),
        (setting(SettingType.BOOLEAN, choices=("false",)), "true", "false"),
        (setting(SettingType.LIST, pattern=r"\*|[0-9]+:[0-9]+"), "1:2,3", "text of the form"),
    ],
)
def test_an_error_says_what_is_allowed(built, text, sentence):
    with pytest.raises(ValueError, match=sentence):
        built.parse(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, None), (True, "true"), (5, "5"), (0.5, "0.5"), (("a", "b"), "a,b"), ((), ""), ("x", "x")],
)
def test_values_are_written_as_kafka_writes_them(value, text):
    assert text_of(value) == text


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("ssl.keystore.password", True),
        ("listener.name.internal.plain.sasl.jaas.config", True),
        ("delegation.token.secret.key", True),
        ("log.retention.ms", False),
        ("ssl.client.auth", False),
    ],
)
def test_sensitive_names_are_recognized(name, secret):
    assert is_sensitive(name) is secret
