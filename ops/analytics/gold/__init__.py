"""Gold: what the reports and dashboards show, by day or hour. Pure functions from silver, DataFrame to DataFrame."""
