"""Where a server's keys come from: an option, the environment, a file."""

from __future__ import annotations

import os

from caudal.configuration.effective import EffectiveSettings
from caudal.errors import SettingError
from caudal.tenants.key_file import KeyFile
from caudal.tenants.keys import GivenKeys, KeySource, admin_key, given_keys

VARIABLE = "CAUDAL_API_KEYS"
"""Has several keys: see `given_keys`."""


def key_sources(settings: EffectiveSettings) -> list[KeySource]:
    """All that there are; none where nobody needs a key.

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
    return sources
