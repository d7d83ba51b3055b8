"""Ways to compute C = Σ γ^t K_t: in closed form, on a chain of x, by histories, by Monte Carlo."""
