// Colours of classes and numbers, told apart also by people who see colours otherwise (after Okabe and Ito, and more).

import type { Colour } from "./scatter";

const PALETTE: Colour[] = [
  [0, 114, 178], [230, 159, 0], [0, 158, 115], [204, 121, 167], [213, 94, 0], [86, 180, 233], [148, 103, 189],
  [180, 180, 40], [140, 86, 75], [60, 60, 130], [150, 200, 120], [255, 130, 130], [90, 130, 90], [200, 170, 240],
];

export const PLAIN: Colour = [128, 136, 150];

export const colourOf = (place: number): Colour => PALETTE[place % PALETTE.length];

/** From dark blue by green to yellow. */
export function shade(share: number): Colour {
  const stops: Colour[] = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const at = Math.max(0, Math.min(1, share)) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(at));
  return stops[low].map((value, k) => Math.round(value + (at - low) * (stops[low + 1][k] - value))) as Colour;
}

export const css = ([r, g, b]: Colour): string => `rgb(${r} ${g} ${b})`;
