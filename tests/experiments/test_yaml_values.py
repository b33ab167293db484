"""Option files are read as OmegaConf reads them, by libyaml if it is installed."""

from io import StringIO
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from testbed.experiments.runs.choice_names import CONF
from testbed.experiments.runs.yaml_values import yaml_text, yaml_values

VALUES = (
    *("1e-3", "1e5", "+1E+5", "1.5e3", ".5e3", ".5e+3", "1_000e3", "1__0e5", "1.", "1_000", "1e"),
    *("0x10", "010", "1:30", "1:30.5", ".inf", "-.INF", "~", "yes", "on", '"1e5"', "!!float 1"),
    *("2020-01-01", "2020-01-01 10:00:00", "[1e3, x, {b: 2e-6}]", "&a {b: 1}", "", "${b}", "???"),
)


def by_omegaconf(text):
    return OmegaConf.to_container(OmegaConf.load(StringIO(text)))


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_read_as_omegaconf_reads_it(value):
    ours, theirs = yaml_values(f"a: {value}"), by_omegaconf(f"a: {value}")
    assert (ours, type(ours["a"])) == (theirs, type(theirs["a"]))


def test_every_shipped_file_is_read_as_omegaconf_reads_it():
    files = sorted(Path(CONF).rglob("*.yaml"))
    assert len(files) > 200
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert repr(yaml_values(text)) == repr(by_omegaconf(text)), file


@pytest.mark.parametrize("text", ["1: a\n1: b", "a: &x {b: 1}\nc: {<<: *x, d: 2}"])
def test_other_keys_are_read_as_omegaconf_reads_them(text):
    assert yaml_values(text) == by_omegaconf(text)


@pytest.mark.parametrize("text", ["", "# nothing but a comment"])
def test_a_text_without_values_is_an_empty_mapping(text):
    assert yaml_values(text) == {}


@pytest.mark.parametrize("text", ["a: 1\na: 2", "b: {a: 1, a: 2}", "a: [", "? [a, b]\n: 1"])
def test_what_omegaconf_refuses_is_refused(text):
    with pytest.raises(yaml.YAMLError):
        by_omegaconf(text)
    with pytest.raises(yaml.YAMLError):
        yaml_values(text)


def test_texts_are_those_of_pyyaml():
    values = {"b": [1e-6, 2**40, None, True], "a": {"ü": "x: y # z", "long": "word " * 40}, "e": {}}
    assert yaml_text(values) == yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    assert yaml.safe_load(yaml_text(values)) == values
