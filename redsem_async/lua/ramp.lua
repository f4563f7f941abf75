-- ramp: the limit in force while a back-off runs.
--
-- A back-off is '<ends>:<began>:<step>:<kept>:<rest>:<by>': when its pause ends, in ms; the counter when
-- it began; how long a step of the slow start is, in ms; the limit that it keeps; for how long it rests
-- at that limit, in ms; who began it.
--
-- No permit is granted in the pause. Then the limit in force is 1, and with each step twice as high, up
-- to the limit kept (slow start). After the rest, what is added to it grows: 1, then 3, 7 and so on,
-- four times in each further rest (avoidance): the first more shows whether the upstream bears more, and
-- if it does, much more may be free. So it is a function of time alone, and nothing is written while it rises. It does
-- not depend on a limit that is declared or set, because one may be higher later. A back-off without a
-- pause ended so long ago that the slow start is over. Slow start, threshold and avoidance are those of
-- TCP (Jacobson, 1988).

local MOST_RISES = 12  -- after which thousands are added, and the back-off is over

-- The parts of a back-off; nil where there is none in *text*.
local function back_off_in(text)
  local ends, began, step, kept, rest, by =
    string.match(text or '', '^(%d+):(%d+):(%d+):(%d+):(%d+):(.*)$')
  return ends and {
    ends = tonumber(ends), began = tonumber(began), step = tonumber(step), kept = tonumber(kept),
    rest = tonumber(rest), by = by,
  }
end
-- For how many ms the slow start of *back_off* lasts.
local function slow_start_of(back_off)
  local steps = 0
  while 2 ^ steps < back_off.kept do steps = steps + 1 end
  return steps * back_off.step
end
-- For how many ms each rise of *back_off* lasts.
local function rise_of(back_off)
  return math.ceil(back_off.rest / 4)
end
-- When *back_off* is over.
local function end_of(back_off)
  return back_off.ends + slow_start_of(back_off) + back_off.rest + MOST_RISES * rise_of(back_off)
end

-- Returns the limit in force of the back-off *text*, and when it changes: 0 in the pause; math.huge and
-- nil when it is over, or nil was given.
local function ramp_of(text)
  local back_off = back_off_in(text)
  if not back_off then return math.huge end
  if now < back_off.ends then return 0, back_off.ends end
  local rests_from = back_off.ends + slow_start_of(back_off)
  if now < rests_from then
    local steps = math.floor((now - back_off.ends) / back_off.step)
    return math.floor(2 ^ steps), back_off.ends + (steps + 1) * back_off.step
  end
  local rises_from, rise = rests_from + back_off.rest, rise_of(back_off)
  if now < rises_from then return back_off.kept, rises_from end
  local rises = math.floor((now - rises_from) / rise) + 1
  if rises > MOST_RISES then return math.huge end
  return back_off.kept + math.floor(2 ^ rises) - 1, rises_from + rises * rise
end

-- How many permits may be in use for a request under the limit *most*, while *used* are. The first
-- request of a ramp may have more than the ramp, so that a heavy one can start, too.
local function room_in(most, used, ramp)
  return ramp > 0 and used == 0 and most or math.min(most, ramp)
end

-- *most* for a reply: where *back_off* runs, {most, ms until the ramp changes, ramp}.
local function with_back_off(most, back_off)
  local ramp, changes = ramp_of(back_off)
  return changes and { most, changes - now, ramp } or most
end
