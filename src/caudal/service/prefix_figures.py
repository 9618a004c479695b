"""What a service says of its prefix cache, for who asks it."""

from caudal.engine.tiers.figures import PrefixCacheFigures as PrefixCacheFigures
from caudal.engine.tiers.figures import SpaceChoice as SpaceChoice
from caudal.engine.tiers.figures import SpaceTokens as SpaceTokens
from caudal.engine.tiers.figures import TierFigures as TierFigures
