"""Where a server's keys come from: an option, the environment, a file."""

from __future__ import annotations

import os

from caudal.configuration.effective import EffectiveSettings
from caudal.errors import SettingError
from caudal.tenants.key_file import KeyFile
from caudal.tenants.keys import GivenKeys, Keys, KeySource, admin_key, given_keys

VARIABLE = "CAUDAL_API_KEYS"
"""Has several keys: see `given_keys`."""


class ConfiguredKeys(KeySource):
    """The keys of a configuration file.

    Args:
        keys: What it says.
    """

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    def changed(self) -> bool:
        """Not by itself."""
        return False

    def read(self) -> Keys:
        """What it says now."""
        return self.keys


def configured_keys(settings: EffectiveSettings) -> ConfiguredKeys | None:
    """The keys of the configuration file, which may have none yet; None where there is no file."""
    return None if settings.file is None else ConfiguredKeys(settings.file.keys)


def key_sources(settings: EffectiveSettings, configured: ConfiguredKeys | None) -> list[KeySource]:
    """All that there are; none where nobody needs a key.

    Args:
        settings: They.
        configured: Those of the configuration file.

    Raises:
        SettingError: A key is none that clients can send.
    """
    given = settings.values
    sources: list[KeySource] = []
    if given.api_key is not None:
        place = settings.place("api_key")
        try:
            sources.append(GivenKeys([admin_key(given.api_key, place)]))
        except ValueError as error:
            raise settings.error("api_key", str(error)) from error
    # Whoever sets it means there to be keys, also where it comes out empty.
    if (text := os.environ.get(VARIABLE)) is not None:
        try:
            sources.append(GivenKeys(given_keys(text, VARIABLE)))
        except ValueError as error:
            raise SettingError(VARIABLE, str(error)) from error
    if given.api_keys is not None:
        sources.append(KeyFile(given.api_keys))
    # What it says of all keys holds for those of other places, too.
    if configured is not None and (sources or configured.keys.keys):
        sources.append(configured)
    return sources
