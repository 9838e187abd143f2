"""`python -m gpuplane`."""

from gpuplane.cli import main

if __name__ == "__main__":
    main()
