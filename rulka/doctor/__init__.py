"""What can be wrong with the machine and the folder that a run needs: `rulka doctor`."""
