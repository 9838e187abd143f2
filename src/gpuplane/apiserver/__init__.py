"""The API server: what it says about our Node, later what it holds of ours."""
