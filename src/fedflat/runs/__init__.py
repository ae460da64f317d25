"""One run, from the description of an experiment to its result and the folder that holds it."""
