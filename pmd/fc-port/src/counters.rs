//! Declaration of counters.

/// Declares an enum of counters with their names, and the values of all:
/// `/// Doc` and `Variant => "name",` for each.
macro_rules! counters {
    (
        #[doc = $what:literal] $counter:ident, $counters:ident:
        $($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+
    ) => {
        #[doc = $what]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $counter { $($(#[doc = $doc])+ $variant,)+ }

        impl $counter {
            /// All counters, in the order of their numbers.
            pub const ALL: &'static [$counter] = &[$($counter::$variant,)+];

            /// Returns the stable name of the counter.
            pub const fn name(self) -> &'static str {
                match self { $($counter::$variant => $name,)+ }
            }
        }

        #[doc = concat!("The value of each [`", stringify!($counter), "`].")]
        #[derive(Clone, Debug)]
        pub struct $counters {
            values: [u64; $counter::ALL.len()],
        }

        impl Default for $counters {
            fn default() -> Self {
                Self { values: [0; $counter::ALL.len()] }
            }
        }

        impl $counters {
            pub(crate) fn count(&mut self, counter: $counter) {
                self.values[counter as usize] += 1;
            }

            /// Returns the value of a counter.
            pub fn get(&self, counter: $counter) -> u64 {
                self.values[counter as usize]
            }

            /// Returns names and values, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                $counter::ALL.iter().map(|c| (c.name(), self.get(*c)))
            }
        }
    };
}

pub(crate) use counters;
