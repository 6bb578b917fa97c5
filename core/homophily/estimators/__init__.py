"""The scikit-learn estimators: parameters, validation and attributes around what the other packages compute."""
