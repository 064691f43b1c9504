//! Message recovery, case by case.
