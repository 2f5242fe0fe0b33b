"""What every test needs of its own process."""

from __future__ import annotations

import signal

# What is started in the background (nohup, cron) inherits that Ctrl-C is ignored, and hands it on
# to the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
