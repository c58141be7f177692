"""rpr-cli dashboard: a saved report in Weights & Biases; prints its address."""

from rpr.config.commands import DashboardConfig


def run(config: DashboardConfig) -> None:
    """Save a report of the project's runs, or of one sweep's; raises ConfigError as `rpr.tracking.dashboard.create`."""
    from rpr.tracking import dashboard

    print(dashboard.create(config.sweep, config.title, config.logger))
