"""The sixteen default offers by name."""

from typing import Final

from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS

NUM_OFFERS: Final = DEFAULT_OFFERS.num_offers
NO_CHANGE: Final = DEFAULT_OFFERS.no_change
OFFER_MINUTES: Final = DEFAULT_OFFERS.minutes
TOTAL_MINUTES: Final = DEFAULT_OFFERS.total_minutes
