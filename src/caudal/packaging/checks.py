"""What can be said of a recipe before anything of it is looked for."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from caudal.conversion import find_mix
from caudal.errors import ConversionError, ParameterError, TemplateError
from caudal.formats.go_template.detection import is_go_template
from caudal.formats.go_template.ollama import OllamaTemplate
from caudal.formats.template_workers import TemplateFailure, TemplateWorkers
from caudal.loading.packaged import PackagedChoices
from caudal.packaging.parameters import check_parameter
from caudal.packaging.recipe import Recipe, read_version
from caudal.store.names import parse_kept_name
from caudal.store.package import Package


def checked_recipe(name: str, recipe: Recipe) -> Recipe:
    """A recipe whose parameters have the types that they are kept with.

    Args:
        name: What the model is to be called.
        recipe: The recipe.

    Raises:
        ModelNameError: It isn't a name that a model can have.
        ParameterError: Something in it can't be; names it.
        TemplateError: The template can't be parsed; names the line.
    """
    parse_kept_name(name)
    if recipe.from_ is None and not recipe.files:
        raise ParameterError("from", "neither 'from' or 'files' was specified")
    if recipe.quantize is not None:
        try:
            find_mix(recipe.quantize)
        except ConversionError as error:
            raise ParameterError("quantize", str(error)) from error
    if recipe.template:
        check_template(recipe.template)
    requires = recipe.requires
    if requires is not None:
        requires = read_version(requires)
        if requires is None:
            raise ParameterError("requires", "requires must be a version, e.g. 0.14.0")
    parameters = {key: check_parameter(key, value) for key, value in recipe.parameters.items()}
    # With which it couldn't be loaded.
    PackagedChoices.of_package(Package(parameters=parameters, messages=recipe.messages))
    return replace(recipe, parameters=parameters, requires=requires)


def check_template(source: str) -> None:
    """Parse a template, Go's or Jinja's.

    Raises:
        TemplateError: It is wrong; names the line.
    """
    if is_go_template(source):
        try:
            OllamaTemplate.compile(source)
        except TemplateError as error:
            raise TemplateError(f"template error: {error}", "template") from error
        return
    try:
        with contextlib.closing(TemplateWorkers(1)) as workers:
            workers.inspect(source)
    except TemplateFailure as error:
        raise TemplateError(f"template error: it {error.words}", "template") from error
