from __future__ import annotations

from collections.abc import Mapping

import pytest
from typer.testing import CliRunner

from caudal.cli.app import app
from caudal.configuration.effective import EffectiveSettings
from caudal.configuration.models import adapter_paths
from caudal.configuration.settings import ServeSettings


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["sql.gguf"], "write NAME=PATH"),
        (["=sql.gguf"], "write NAME=PATH"),
        (["sql="], "write NAME=PATH"),
        (["a=1", "b=2", "a=3"], "two adapters 'a'"),
        (["tiny=sql.gguf"], "the model's own name"),
    ],
)
def test_an_adapter_has_a_name_of_its_own_and_a_path(given: list[str], why: str):
    options = [option for text in given for option in ("--lora", text)]
    result = CliRunner().invoke(app, ["serve", "tiny", "--port", "0", *options])
    assert result.exit_code == 2
    assert "--lora" in result.stderr
    assert why in " ".join(result.stderr.replace("│", " ").split())


def test_adapters_are_read_in_order_and_paths_may_have_equals_signs():
    def read(*given: str) -> Mapping[str, str]:
        return adapter_paths(EffectiveSettings(ServeSettings(lora=given)), ["tiny"])

    assert list(read("b=x=y.gguf", "a=dir").items()) == [("b", "x=y.gguf"), ("a", "dir")]
    assert read() == {}
