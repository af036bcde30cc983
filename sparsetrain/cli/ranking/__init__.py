# SPDX-License-Identifier: Apache-2.0
"""Rankings on the command line: splitting and ranking a log, and recommending items."""

from sparsetrain.cli.ranking.protocols import IS_RANKING as IS_RANKING
from sparsetrain.cli.ranking.protocols import find_interactions as find_interactions
from sparsetrain.cli.ranking.protocols import has_ages as has_ages
from sparsetrain.cli.ranking.protocols import ranking_options as ranking_options
from sparsetrain.cli.ranking.protocols import read_interactions as read_interactions
from sparsetrain.cli.ranking.protocols import read_log as read_log
from sparsetrain.cli.ranking.protocols import rows_to_rank as rows_to_rank
