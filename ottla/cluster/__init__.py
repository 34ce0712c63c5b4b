"""What every broker agrees on: the store it is kept in, the image it is read as, the controller that changes it."""
