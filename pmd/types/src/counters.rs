//! Declaration of counters.

/// Declares an enum of counters with their names, and the values of all: visibility, names of the two types, then
/// `/// Doc` and `Variant => "name",` for each counter.
#[macro_export]
macro_rules! counters {
    (
        #[doc = $what:literal] $vis:vis $counter:ident, $counters:ident:
        $($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+
    ) => {
        #[doc = $what]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        $vis enum $counter { $($(#[doc = $doc])+ $variant,)+ }

        impl $counter {
            /// All counters, in the order of their numbers.
            $vis const ALL: &'static [$counter] = &[$($counter::$variant,)+];

            /// Returns the stable name of the counter.
            $vis const fn name(self) -> &'static str {
                match self { $($counter::$variant => $name,)+ }
            }
        }

        #[doc = concat!("The value of each [`", stringify!($counter), "`].")]
        #[derive(Clone, Debug)]
        $vis struct $counters {
            values: [u64; $counter::ALL.len()],
        }

        impl Default for $counters {
            fn default() -> Self {
                Self { values: [0; $counter::ALL.len()] }
            }
        }

        impl $counters {
            /// Adds to a counter.
            #[inline]
            $vis fn add(&mut self, counter: $counter, n: u64) {
                self.values[counter as usize] += n;
            }

            /// Adds 1 to a counter.
            #[inline]
            $vis fn count(&mut self, counter: $counter) {
                self.add(counter, 1);
            }

            /// Returns the value of a counter.
            #[inline]
            $vis fn get(&self, counter: $counter) -> u64 {
                self.values[counter as usize]
            }

            /// Returns names and values, in a fixed order.
            $vis fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                $counter::ALL.iter().map(|c| (c.name(), self.get(*c)))
            }
        }
    };
}
