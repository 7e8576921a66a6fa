"""`python -m trainmaster.cli`: `tm` without its script."""

from trainmaster.cli import begin

if __name__ == "__main__":
    begin()
