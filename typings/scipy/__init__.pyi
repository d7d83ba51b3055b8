# What this project uses of SciPy, which declares no types itself: inferring them from its source took a tenth of `make types`.
