"""The gyms themselves, a page each: what is asked, its rules, its tools, one played episode.

`humanlm.gyms.find_gym` finds them by name; start with `nbs/70_gyms.ipynb`."""
