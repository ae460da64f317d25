"""The HTML report about runs: tables, charts, figures for papers and TensorBoard event files."""
