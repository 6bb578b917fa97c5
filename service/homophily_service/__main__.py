"""``python -m homophily_service`` is the command ``homophily``."""

from homophily_service.cli import main

if __name__ == "__main__":
    main()
