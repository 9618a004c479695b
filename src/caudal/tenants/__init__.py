"""Who may ask, what they may, and how much of it: keys, their rules, their quotas. No HTTP."""
