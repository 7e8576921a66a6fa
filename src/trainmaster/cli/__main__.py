"""`python -m trainmaster.cli`: `tm` without its script."""

from trainmaster.cli.main import main

if __name__ == "__main__":
    main()
