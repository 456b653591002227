"""Silver: from bronze events to runs, activities, moves, phases, throttles, failures. Pure, DataFrame to DataFrame."""
