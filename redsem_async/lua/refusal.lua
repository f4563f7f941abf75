-- refusal: the error of a script that finds another mode or layout. It changes nothing.
--
-- MODE    mode and clock in use, how many ids hold permits, how many hubs count as alive, in how many
--         ms meta expires (-1 for never): until then the name is taken
-- LAYOUT  the layout in use (0 for none), the caller's, the versions that hubs which count as alive
--         say they have ('-' for none), in how many ms meta expires
if stored_mode and stored_mode ~= mode or layout and layout ~= LAYOUT then
  -- Count by the clock in use: the server's, if this caller's is a local one.
  if clock_us ~= '' and string.find(stored_mode or '', 'server', 1, true) then
    wall_us = read_clock() or wall_us
  end
  local after = string.format('(%.0f', math.floor((wall_us + lead) / 1000))
  if layout ~= LAYOUT then
    local versions = {}
    pcall(function()  -- the keys of another layout may be anything
      local who = call('ZRANGEBYSCORE', hubs, after, '+inf', 'LIMIT', 0, 32)
      for i, owner in ipairs(who) do who[i] = owner .. ':client' end
      for _, told in ipairs(who[1] and call('HMGET', meta, unpack(who)) or {}) do
        local version = string.match(told or '', '"version":%s*"([%w.+!_-]+)"')
        if version and #version <= 40 and not versions[version] then
          versions[version], versions[#versions + 1] = true, version
        end
      end
    end)
    return redis.error_reply(string.format('LAYOUT %s %s %s %.0f',
      string.match(layout, '^%d%d?%d?%d?$') or '0', LAYOUT,
      #versions > 0 and table.concat(versions, ',') or '-', call('PTTL', meta)))
  end
  return redis.error_reply(string.format('MODE %s %d %d %.0f', stored_mode,
    call('ZCOUNT', holders, after, '+inf'), call('ZCOUNT', hubs, after, '+inf'),
    call('PTTL', meta)))
end
