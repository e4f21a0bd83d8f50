"""Report formats: pure functions of a result, which compute no privacy bounds, and the views that results have."""

from dpspec.contract.results import use_views
from dpspec.reporters.views import VIEWS

use_views(VIEWS)
