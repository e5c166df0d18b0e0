"""The SoftTriple paper: its tables as data, the runs behind them, and its tables and figures made again."""
