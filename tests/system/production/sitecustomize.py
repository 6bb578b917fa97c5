"""The processes under test have what the `service` extra installs, and nothing that comes only with `dev`.

Besides, they start in two thirds of the time without it: scikit-learn imports pandas wherever there is one.
"""

import sys

sys.modules.update(dict.fromkeys(("pandas", "pyarrow", "matplotlib", "pytest")))
