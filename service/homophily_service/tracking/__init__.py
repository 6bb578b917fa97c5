"""Jobs as runs in MLflow, and models as MLflow has them.

No job ever talks to MLflow: that something has happened to it is noted with it in the database, and a process of its
own, the tracker, sends it on. What MLflow cannot take now stays noted, and goes when it can.
"""
