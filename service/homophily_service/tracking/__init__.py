"""Jobs as runs in MLflow, and models in MLflow's format.

No job ever talks to MLflow: each change is marked in the database, and a separate process, the tracker, sends it. If
MLflow is down, the mark stays and the change is sent later.
"""
