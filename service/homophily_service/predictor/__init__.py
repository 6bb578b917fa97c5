"""Answers for new points: warm processes that keep models in memory, and the API's pool of them."""
